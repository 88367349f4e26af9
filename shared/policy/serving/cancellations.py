"""Cancellations of loads and restores, so that one broken service stops no other.

Nothing else runs on the GPUs of a load, and an engine that never becomes healthy loads until the limit of its start
(600 s by default). Laws (tests/shared/policy/serving/test_cancellations.py, and the model checker):
  - a load for which nobody waits (a probe, or one whose holders have gone) is cancelled as soon as a holder of another
    instance waits for one of its GPUs. A restore takes less time than the load that would follow, so it is cancelled
    only when it is late: it has lasted for `LATE` times its expected time;
  - a load or restore for which holders wait is cancelled if a holder of another instance has waited for `max_wait_s`,
    and it is late and has lasted for `max_wait_s`. With each such cancellation in a row it gets twice the time, so an
    engine that loads slowly becomes resident in the end. The instance is quarantined for at least `PAUSE` times as long
    as the load has lasted, so that it takes a fifth of the time of its GPUs at most;
  - one that has lasted so long and yields (`yields`) is cancelled in the same way, and at once: the leader has granted
    its GPUs to a holder that has waited elsewhere;
  - the engine is stopped afterwards. Without waiting holders nothing counts as a failure: a probe follows after the
    same pause again, and another load begins with the next holder.
"""

from __future__ import annotations

from math import inf
from typing import Final

from shared.policy.serving.engine_steps import EngineSteps
from shared.policy.serving.instance import EngineInstance
from shared.policy.serving.model import CancelStep, InstanceId
from shared.policy.serving.node_state import NodeState
from shared.policy.serving.yields import late_s, most_held_s

PAUSE: Final = 4.0


class StepCancellations:
    """Cancellations of one node. A method is O(instances on the GPUs concerned that are not at rest) if it names no
    other cost.
    """

    def __init__(self, state: NodeState, engines: EngineSteps) -> None:
        self._state = state
        self._engines = engines

    def make_way(self, one: EngineInstance, now: float) -> None:
        """Cancel the loads and restores for which the holders of an instance need not wait any longer."""
        for other, due_s in self._due(one):
            if due_s <= now:
                other.cancelled = "late" if other.waiting or other.yields else "unheld"
                why = f"its {other.step} is cancelled: a holder waits for {self._waits_longest(other, one)}"
                self._state.set_state(other, other.state, why, now)
                self._state.commands.append(CancelStep(other.id))

    def _waits_longest(self, other: EngineInstance, one: EngineInstance) -> InstanceId:
        """Return the instance whose holder has waited longest for GPUs of a load; `one` waits for them too. So the
        reason does not depend on which of several was looked at first.
        """
        waiting = [each for each in (one, *self._state.overlapping(other)) if each.oldest is not None]
        return min(waiting, key=lambda each: (each.oldest.arrived_s if each.oldest else inf, each.id)).id

    def next_s(self, one: EngineInstance, now: float) -> float:
        """Return the next time of `make_way`; infinity: never, unless something changes."""
        return min((due_s for _, due_s in self._due(one) if due_s > now), default=inf)

    def _due(self, one: EngineInstance) -> list[tuple[EngineInstance, float]]:
        """Return the loads and restores that keep an instance waiting, with the times of their cancellations."""
        oldest = one.oldest
        if oldest is None or one.running or one.step is not None or one.activation is not None:
            return []
        others = self._state.overlapping(one)
        if any(other.running for other in others):
            return []  # it waits for their ends too
        overdue_s = oldest.arrived_s + self._state.config.max_wait_s
        return [
            (other, max(overdue_s if other.waiting else oldest.arrived_s, other.since_s + self._allowed_s(other)))
            for other in others
            if other.step in ("load", "restore") and not other.cancelled
        ]

    def _allowed_s(self, other: EngineInstance) -> float:
        """Time for which a load or restore may last while others wait. O(1)."""
        if other.waiting:
            return most_held_s(other, self._state)
        return 0.0 if other.step == "load" else late_s(other, self._state)

    def ended(self, one: EngineInstance, now: float) -> None:
        """Handle the end of a load or restore that was cancelled and has not succeeded."""
        how, one.cancelled = one.cancelled, ""
        if how == "late" and not one.leaving:
            one.late += 1
            self._engines.quarantine(one, one.why, now, least_s=PAUSE * (now - one.since_s))
        elif one.probing and not one.waiting and not one.leaving:
            self._engines.quarantine(one, one.why, now, failed=False)
        else:
            self._state.must_stop(one, one.why, now)
