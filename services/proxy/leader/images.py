"""Hints of expected environments, passed to the dispatcher (RollArt: creating an environment must not wait for a
pull).
"""

from __future__ import annotations

from services.proxy.leader.requests import runtime_kind
from shared.api.images import familiar
from shared.messages.environments import LOCAL, MEMORY
from shared.messages.trajectories import EnvironmentsExpected
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.model.formulation import Command
from shared.runtime.units import Seconds

FRESH_S: Seconds = 60.0
"""Seconds after which a hint that is read at a takeover counts as handled."""


def expect(dispatcher: Dispatcher, now: Seconds, said: Seconds, expected: EnvironmentsExpected) -> list[Command]:
    """Return the pulls for a hint: one node for each image that is missing. `said`: time of the hint."""
    if now - said > FRESH_S:
        return []
    images = [familiar(image) for image in expected.images if image != LOCAL]
    units = {MEMORY: expected.memory_mb}
    return dispatcher.environments_expected(now, images, expected.node_class, runtime_kind("docker"), units)
