"""Lanes that a scheduling round has to serve. The others sleep until their node or their queue changes.

Law: serving a sleeping lane would change nothing. It is bound to one node, this node has no free units of the pool's
resource, and no share is to be updated for its head. So trajectories that wait for busy nodes cost a round nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shared.policy.resources.pools import Lane, Pool

LaneKey = tuple[str, str]
"""(Pool, lane)."""


@dataclass(slots=True)
class Lanes:
    """Lanes of all pools that have waiting work. Lanes that have become empty stay until the next round."""

    awake: dict[LaneKey, tuple[Pool, Lane]] = field(default_factory=dict)
    asleep: dict[str, dict[LaneKey, tuple[Pool, Lane]]] = field(default_factory=dict)
    """Node -> sleeping lanes that are bound to it."""

    def wake(self, pool: Pool, lane: Lane) -> None:
        """Let the next round serve a lane: its queue has changed."""
        key = (pool.name, lane.name)
        self.awake[key] = (pool, lane)
        if lane.node in self.asleep:
            self._leave(key, lane)

    def wake_node(self, node: str) -> None:
        """Let the next round serve the lanes of a node: it has changed."""
        lanes = self.asleep.pop(node, None)
        if lanes is not None:
            self.awake.update(lanes)

    def wake_all(self) -> None:
        """Let the next round serve all lanes."""
        for node in list(self.asleep):
            self.wake_node(node)

    def sleep(self, pool: Pool, lane: Lane) -> None:
        """Do not serve a lane until it is woken."""
        key = (pool.name, lane.name)
        self.awake.pop(key, None)
        self.asleep.setdefault(lane.node, {})[key] = (pool, lane)

    def remove(self, pool: Pool, lane: Lane) -> None:
        """Remove an empty lane."""
        key = (pool.name, lane.name)
        self.awake.pop(key, None)
        if lane.node in self.asleep:
            self._leave(key, lane)

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

    def _leave(self, key: LaneKey, lane: Lane) -> None:
        lanes = self.asleep[lane.node]
        lanes.pop(key, None)
        if not lanes:
            del self.asleep[lane.node]

    def check(self, pools: Iterable[Pool]) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        sleeping = [key for lanes in self.asleep.values() for key in lanes]
        assert self.awake.keys().isdisjoint(sleeping), "awake and asleep"
        waiting = {(pool.name, lane.name): lane for pool in pools for lane in pool.all_lanes() if lane.queue}
        assert waiting.keys() <= self.awake.keys() | set(sleeping), "every lane with waiting work"
        known = {**self.awake, **{key: one for lanes in self.asleep.values() for key, one in lanes.items()}}
        assert all(known[key][1] is lane for key, lane in waiting.items()), "present lanes"
        assert set(sleeping) <= waiting.keys(), "sleeping lanes have waiting work"
