"""Heads that wait for calls of other model services: whether these are there, in any lane of the pool."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass, field

from shared.policy.dispatch.engine_choice import EngineChoice
from shared.policy.dispatch.lanes import Lanes
from shared.policy.dispatch.swaps import Swaps
from shared.policy.resources.pools import Lane, Pool


@dataclass(slots=True)
class CallWaits:
    """Heads of one scheduling round whose restore is put off for work that goes first (`swaps`, `engine_choice`).

    A head waits no longer if nothing behind it was granted. If its pool has several lanes, that is decided when all
    others have been served: the calls that it waits for may be in another lane.
    """

    swaps: Swaps
    engines: EngineChoice
    granted: Sized
    """Grants of the round so far."""
    put_off: list[tuple[Pool, Lane, int]] = field(default_factory=list)
    """Lanes to serve again, each with the number of grants before."""
    _is_last: bool = False
    """All lanes have been served."""

    def insists(self, pool: Pool, lane: Lane, head: str) -> bool:
        """Let a head wait no longer, if nothing was granted behind it. False: it does not wait for calls, or waits on
        for those of other lanes.
        """
        if not self.swaps.puts_off(head) and not self.engines.waits_for_calls(pool, lane, head):
            return False
        if not self._is_last and len(pool.lanes) + bool(pool.queue) > 1:
            self.put_off.append((pool, lane, len(self.granted)))
            return False
        self.swaps.insisting = self.engines.insisting = head
        return True

    def left(self, lanes: Lanes) -> Iterator[tuple[Pool, Lane]]:
        """Yield the lanes to serve again after all others: those after which nothing was granted."""
        self._is_last = True
        for pool, lane, granted in self.put_off:
            if len(self.granted) == granted and lane.queue and (pool.name, lane.name) not in lanes.asleep:
                yield pool, lane
