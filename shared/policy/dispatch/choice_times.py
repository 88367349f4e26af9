"""Time of the choices in scheduling rounds, for benchmarks: the choice is a part of the dispatcher's decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.scheduling_round import SchedulingRound
from shared.policy.resources.ledger import Node
from shared.policy.resources.pools import Lane, Pool


@dataclass(slots=True)
class ChoiceTimes:
    """Adds the seconds of all choices of this process while it is entered: of `SchedulingRound.place`, by `clock`.

    A choice costs two calls of the clock.
    """

    clock: Callable[[], float]
    took_s: float = 0.0

    def __enter__(self) -> Self:
        times, clock = self, self.clock

        def timed(self: SchedulingRound, pool: Pool, lane: Lane, action: ActionState) -> Node | None:
            began_s = clock()
            node = _place(self, pool, lane, action)
            times.took_s += clock() - began_s
            return node

        SchedulingRound.place = timed  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        SchedulingRound.place = _place  # type: ignore[method-assign]


_place = SchedulingRound.place
