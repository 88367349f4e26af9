"""Yields: late loads and restores that offer their GPUs to other services for a moment.

The leader grants the GPUs of a chunk to one service at a time. So holders that wait for an engine that never becomes
healthy keep all other services from its GPUs, and the node does not see these waiting. Laws
(tests/shared/policy/serving/test_yields.py, and the model checker):
  - a load or restore for which holders wait yields when it has lasted for `most_held_s`, and again when holders have
    waited for `max_wait_s` since its last yield. Its holders are refused with a retry, so that the leader queues them
    again, and nobody is admitted to wait for it for `yield_s`. The step goes on meanwhile: an engine that is slow, and
    whose GPUs nobody else needs, loses nothing. A step does not yield while a holder of another instance waits on the
    node, because that cancels a late step already;
  - a holder of another instance that comes meanwhile cancels the step as a late one (`cancellations`): the instance is
    quarantined, and the next time it may last twice as long before it yields.
"""

from __future__ import annotations

from math import inf
from typing import Final

from shared.policy.serving.holder_queue import HolderQueue
from shared.policy.serving.instance import EngineInstance
from shared.policy.serving.model import YieldChanged
from shared.policy.serving.node_state import NodeState

LATE: Final = 2.0
"""A step is late after this times its expected time. Loads vary, and the expected time of the first one is a default.
"""
MOST_DOUBLINGS: Final = 30


def late_s(one: EngineInstance, state: NodeState) -> float:
    """Return the time after which a load or restore is late. O(1)."""
    return LATE * state.times.restore_s(one.id, "cold" if one.place == "awake" else one.place)


def most_held_s(one: EngineInstance, state: NodeState) -> float:
    """Return the time for which a load or restore with holders may keep others waiting. It doubles with each
    cancellation in a row, so that a slow engine becomes resident in the end. O(1).
    """
    return float(max(late_s(one, state), state.config.max_wait_s) * 2 ** min(one.late, MOST_DOUBLINGS))


class StepYields:
    """Yields of one node. A method is O(holders of the instance) if its docstring has no other cost."""

    def __init__(self, state: NodeState, queue: HolderQueue) -> None:
        self._state = state
        self._queue = queue

    def next_s(self, one: EngineInstance) -> float:
        """Return the time at which a yield begins or ends; infinity: never, unless something changes. O(instances on
        its GPUs that are not at rest).
        """
        if one.step not in ("load", "restore") or one.cancelled:
            return inf
        if one.yields_until_s is not None:
            return one.yields_until_s
        state = self._state
        if not one.waiting or not state.config.yield_s or one.leaving or one.stop_why:
            return inf
        if any(other.waiting for other in state.overlapping(one)):
            return inf
        return max(one.since_s + most_held_s(one, state), one.yielded_s + state.config.max_wait_s)

    def due(self, one: EngineInstance, now: float) -> None:
        """Begin or end a yield if it is due."""
        if self.next_s(one) > now:
            return
        state = self._state
        if one.yields_until_s is not None:
            one.yields_until_s, one.yielded_s = None, now
            state.commands.append(YieldChanged(one.id, yields=False))
        else:
            one.yields_until_s = now + state.config.yield_s
            state.commands.append(YieldChanged(one.id, yields=True))
            why = f"its {one.step} is late: it has lasted {now - one.since_s:.0f} s, so its GPUs are offered to others"
            state.set_state(one, one.state, why, now)
            self._queue.refuse_waiting(one, f"{one.id} is {one.state}: {why}", state.config.retry_s)
        state.touch(one)
