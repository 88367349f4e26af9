"""Liveness: engines that are resident and answer nothing.

A slow engine and one that hangs look alike to a holder. So an engine that has had holders for `hung_after_s` and has
answered none of them is read, beside its holders (`CheckLiveness`). What was found:
  - `hung`: it counts as dead. Its holders are refused, so that their work is repeated, and it is stopped;
  - `alive`, and no holder's time was over since its last answer: it is slow. It is read again `hung_after_s` later;
  - otherwise it is *suspect*: it admits nobody. An answer to one of its holders ends that. If it has none any more, it
    has to answer a canary before the next one, as after a restore; if that fails, it is stopped.
An engine that has failed `most_failed_calls` calls in a row, for example for lack of memory, is suspect too.

Laws (tests/shared/policy/serving/test_liveness.py, and the model checker): at most one check of an engine is under way;
an engine without holders is never read; a suspect engine admits nobody.
"""

from __future__ import annotations

from math import inf

from shared.policy.serving.config import ServingConfig
from shared.policy.serving.engine_steps import EngineSteps
from shared.policy.serving.instance import EngineInstance
from shared.policy.serving.model import CheckLiveness, LivenessChecked
from shared.policy.serving.node_state import NodeState


def check_due_s(one: EngineInstance, config: ServingConfig) -> float:
    """Return the time at which an engine has to be read; infinity: never."""
    if (
        not one.running
        or one.unanswered_s is None
        or one.checking_s is not None
        or one.step is not None
        or one.stop_why
    ):
        return inf
    return one.unanswered_s + config.hung_after_s


class LivenessChecks:
    """Checks of one node. Each method is O(holders of the instance)."""

    def __init__(self, state: NodeState, engines: EngineSteps) -> None:
        self._state = state
        self._engines = engines

    def begin(self, one: EngineInstance, now: float) -> None:
        """Begin a check if it is due."""
        if now >= check_due_s(one, self._state.config):
            one.checking_s = now
            self._state.commands.append(CheckLiveness(one.id))

    def checked(self, now: float, checked: LivenessChecked) -> None:
        """Handle the end of a check. One that was not asked for, or has been overtaken by a step, changes nothing."""
        one = self._state.instances.get(checked.instance)
        if one is None or one.checking_s is None:
            return
        answered, one.checking_s = one.answered_meanwhile, None
        self._state.touch(one)
        if answered:
            return
        if checked.found == "hung":
            self._engines.hung(one, f"it hangs: {checked.reason}", now)
            return
        one.unanswered_s = now
        one.suspect = checked.found == "silent" or one.unanswered > 0
        if one.suspect and not one.running:
            one.checked = False
            one.forget_unanswered()
