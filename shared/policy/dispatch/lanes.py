"""Lanes that a scheduling round has to serve. The others sleep until something they wait for changes.

Law: serving a sleeping lane would change nothing. One of these holds for it:
  - it is bound to one node, this node has no free units of the pool's resource, and no share is to be updated for its
    head. A change of the node wakes it;
  - each of its actions that a round would look at lacks a quota. It wakes when the quota may be free
    (`QuotaWaits`).
A change of its queue or of the set of nodes wakes it too, and so does a quota that can never give what its head needs.
So a round costs nothing for trajectories that wait for busy nodes, and for work that waits for quotas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from shared.policy.dispatch.quota_waits import LaneKey, Need, QuotaWaits, Sleeper
from shared.policy.resources.pools import BACKFILL_DEPTH, Lane, Pool
from shared.policy.resources.quotas import Quotas

MOST_PASSED: Final = 4096
"""Most actions behind a head that a round passes over to find calls of other model services, about 1 us each."""
FAR_S: Final = 0.2
"""Time between two such walks over a lane."""
FAR_AGAIN_S: Final = 0.02
"""The same after a walk that has granted something."""


@dataclass(slots=True)
class Lanes:
    """Lanes of all pools that have waiting work. Lanes that have become empty stay until the next round."""

    awake: dict[LaneKey, tuple[Pool, Lane]] = field(default_factory=dict)
    asleep: dict[LaneKey, Sleeper] = field(default_factory=dict)
    on_node: dict[str, dict[LaneKey, Sleeper]] = field(default_factory=dict)
    """Node -> sleeping lanes that are bound to it."""
    waits: QuotaWaits = field(default_factory=QuotaWaits)
    """Sleeping lanes with quotas."""

    def wake(self, pool: Pool, lane: Lane) -> None:
        """Let the next round serve a lane: its queue has changed."""
        key = (pool.name, lane.name)
        self.awake[key] = (pool, lane)
        if key in self.asleep:
            self._leave(key)

    def wake_node(self, node: str) -> None:
        """Let the next round serve the lanes of a node: it has changed."""
        if node in self.on_node:
            for key in list(self.on_node[node]):
                self._wake(key)

    def wake_quotas(self, quotas: Quotas, now: float) -> list[Need]:
        """Wake lanes whose head can never be given its quotas, and return what others lack and is free now.

        O(amounts that are lacking of quotas that have changed, and of rates that were refilled).
        """
        if not (quotas.changed or self.waits):
            return []
        changed = list(quotas.changed)
        quotas.changed.clear()
        for key in self.waits.never(quotas, changed):
            if key in self.asleep:
                self._wake(key)
        return self.waits.free(quotas, changed, now)

    def wake_first(self, need: Need, quotas: Quotas, now: float) -> tuple[Pool, Lane] | None:
        """Wake the first lane that lacks this, and return it; None if this is not free."""
        key = self.waits.first(need, quotas, now)
        return None if key is None else self._wake(key)

    def wake_all(self) -> None:
        """Let the next round serve all lanes."""
        for key in list(self.asleep):
            self._wake(key)

    def sleep(self, one: Sleeper, quotas: Quotas, now: float) -> None:
        """Do not serve a lane until it is woken."""
        key = (one.pool.name, one.lane.name)
        self.awake.pop(key, None)
        self.asleep[key] = one
        if one.lane.node:
            self.on_node.setdefault(one.lane.node, {})[key] = one
        self.waits.add(one, quotas, now)

    def remove(self, pool: Pool, lane: Lane) -> None:
        """Remove an empty lane."""
        key = (pool.name, lane.name)
        self.awake.pop(key, None)
        if key in self.asleep:
            self._leave(key)

    def to_serve(self) -> list[tuple[Pool, Lane]]:
        """Lanes to serve in this round, by pool and lane in the order of their creation."""
        if len(self.awake) == 1:
            return self._only()
        empty = [key for key, (_, lane) in self.awake.items() if not lane.queue]
        for key in empty:
            del self.awake[key]
        return sorted(self.awake.values(), key=lambda one: (one[0].number, one[1].number))

    def _only(self) -> list[tuple[Pool, Lane]]:
        """The one lane that is awake. A mesh that is not saturated has no other."""
        one = next(iter(self.awake.values()))
        if one[1].queue:
            return [one]
        self.awake.clear()
        return []

    def _wake(self, key: LaneKey) -> tuple[Pool, Lane]:
        one = self._leave(key)
        self.awake[key] = (one.pool, one.lane)
        return one.pool, one.lane

    def _leave(self, key: LaneKey) -> Sleeper:
        one = self.asleep.pop(key)
        if one.lane.node:
            lanes = self.on_node[one.lane.node]
            del lanes[key]
            if not lanes:
                del self.on_node[one.lane.node]
        self.waits.remove(one)
        return one

    def check(self, pools: Iterable[Pool]) -> None:
        """Assert the invariants; tests call it after every step, services never do.

        That serving a sleeping lane would change nothing is tested by tests/shared/policy/dispatch/test_node_choice.py.
        """
        assert self.awake.keys().isdisjoint(self.asleep), "awake and asleep"
        waiting = {(pool.name, lane.name): lane for pool in pools for lane in pool.all_lanes() if lane.queue}
        assert waiting.keys() <= self.awake.keys() | self.asleep.keys(), "every lane with waiting work"
        for key, lane in waiting.items():
            known = self.asleep[key].lane if key in self.asleep else self.awake[key][1]
            assert known is lane, "present lanes"
        assert self.asleep.keys() <= waiting.keys(), "sleeping lanes have waiting work"
        for one in self.asleep.values():
            assert (one.head, one.key) == (one.lane.queue.head(), one.lane.queue.head_key()), "the head stays"
            assert one.lane.node or one.lacking, "each waits for something"
        bound = {key: one for lanes in self.on_node.values() for key, one in lanes.items()}
        assert bound == {key: one for key, one in self.asleep.items() if one.lane.node}, "bound to nodes"
        self.waits.check(self.asleep.values())


def behind_head(lane: Lane, *, far: bool = False) -> Iterator[str]:
    """Yield the actions behind the head of a lane: `BACKFILL_DEPTH` at most, or `MOST_PASSED`."""
    most = MOST_PASSED if far else BACKFILL_DEPTH
    if len(lane.queue) < 2:
        return
    for depth, name in enumerate(lane.queue.mixed()):
        if depth > most:
            return
        if depth:
            yield name
