"""Hints of environments to come, as the dispatcher takes them (RollArt: making an environment must not wait for it)."""

from __future__ import annotations

from services.proxy.leader.requests import runtime_kind
from shared.api.images import familiar
from shared.messages.environments import LOCAL, MEMORY
from shared.messages.trajectories import EnvironmentsExpected
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.model.formulation import Command
from shared.runtime.units import Seconds

FRESH_S: Seconds = 60.0
"""Older hints, read at a take-over, have been passed on."""


def expect(dispatcher: Dispatcher, now: Seconds, said: Seconds, expected: EnvironmentsExpected) -> list[Command]:
    """What follows from a hint: pulls, on one node for each image that is missing. `said`: when it was given."""
    if now - said > FRESH_S:
        return []
    images = [familiar(image) for image in expected.images if image != LOCAL]
    units = {MEMORY: expected.memory_mb}
    return dispatcher.environments_expected(now, images, expected.node_class, runtime_kind("docker"), units)
