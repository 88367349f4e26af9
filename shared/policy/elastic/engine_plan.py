"""Plan of model calls on chunks of GPUs: their order, degrees and chunks (ARL-Tangram §4.2, §5.3, Algorithm 4).

A state of the plan is that of the chunks: the time at which each GPU is free, and the engines that are resident. A call
takes an aligned chunk of one of its degrees, so larger free blocks are split. Its engine is resident there afterwards,
and engines without memory beside it have left. Law: the least sum over all calls of

    end + price * (idle + GPUs * ((eviction + restore) / sharers + duration / slots)) - credit

where `price` is what a GPU-second costs calls that are not in the plan, `idle` are the GPU-seconds for which free GPUs
of the chunk wait for the others, and `sharers` are the waiting calls of the service. The slots of an engine share a
duration: all of them if a call joins others, else as many as sharers. Restores and evictions are parts of `end`, where
the state requires them. A restore takes the time of its chunk: that of the engine that sleeps there, else that of a
load. Their cost is reduced by the credit of the service for the degree (`restore_credits`).

`search` builds plans in the order of begins and follows the lowest bound first, until no bound is below the best plan.
This is exact, except in two cases: it has evaluated `most` places, or a step has more than `MOST_OPTIONS` places. A
first plan needs few places if each call has one; without it the search ends soon after `most`. `append` adds one call
to a plan where it costs least. Corrected here: Algorithm 4 never splits a chunk, and knows no restores. Oracle:
tests/shared/policy/elastic/engine_oracle.py.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from shared.policy.elastic import engine_loops as loops
from shared.policy.elastic import engine_states as of
from shared.policy.model.chunks import SIZES
from shared.policy.resources.engine_records import MOST_SLOTS, ROW_COLUMNS, EngineRecords, Floats, floats
from shared.policy.resources.restore_credits import NO_CREDITS

MOST_PLANNED: Final = 6
"""Most calls of a search."""
MOST_EVALUATED: Final = 2_000
"""Places that a search evaluates at most, beyond those of its first plan: about 0.5 us each."""
MOST_ADDED: Final = 96
"""Most calls of a plan."""


class PlannedPlace(NamedTuple):
    """Place of one call."""

    begin_s: float
    """Seconds until it begins; 0: now."""
    node: int
    """Index of the node."""
    first: int
    """First GPU of its chunk."""
    size: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """GPUs of its chunk."""
        return tuple(range(self.first, self.first + self.size))


class PlannableCall(NamedTuple):
    """A call to plan."""

    service: int
    """Number of its service (`engine_records.number_of`)."""
    lasts_s: Sequence[float]
    """Seconds on a chunk of each of `SIZES`; infinite where it cannot use one."""
    rows: Sequence[bytes]
    """By node `engine_records.service_row`."""
    accepted: Sequence[bool]
    """By node, whether it can run there."""
    sharers: int
    """Waiting calls of the service."""
    credits_s: Sequence[float]
    """By size, seconds of cost that earlier calls of its service have paid towards a restore (`restore_credits`)."""


class _PlanState(NamedTuple):
    layout: of.Layout
    engines: of.EngineColumns
    states: of.States


@dataclass(slots=True)
class EnginePlan:
    """A plan on nodes of one pool.

    Args:
        nodes: their records.
        now: time of the plan.
        together: most calls of a search.
    """

    nodes: Sequence[EngineRecords]
    now: float
    together: int = MOST_PLANNED
    _state: _PlanState | None = None
    """Made when it is needed: a plan of one call needs none."""
    _first: tuple[PlannableCall, float] | None = None
    """The only call so far and its price, if there is no state yet."""
    _added: int = 0

    @property
    def room(self) -> int:
        """Calls that can be added."""
        return MOST_ADDED - self._added

    def search(
        self, calls: Sequence[PlannableCall], price: float, most: int = MOST_EVALUATED
    ) -> list[PlannedPlace] | None:
        """Add calls with the least sum of costs. Begins ascend, so none uses a gap before an earlier one.

        Args:
            calls: `together` at most.
            price: seconds for each GPU-second, >= 0.
            most: places to evaluate, beyond those of the first plan.

        Returns:
            By call its place; None: no plan was found, for example because one of them has none. Nothing is added.
        """
        assert len(calls) <= min(self.together, self.room), f"{len(calls)} calls are too many"
        table = np.empty((len(calls), of.COLUMNS))
        if not loops.search(*self._arrays(), _columns(calls), self._added, price, most, table):
            return None
        self._added += len(calls)
        places = {int(one[of.CALL]): _place(one) for one in table}
        return [places[call] for call in range(len(calls))]

    def append(self, call: PlannableCall, price: float) -> PlannedPlace | None:
        """Add one call where it costs least; None: it has no place, and is not added."""
        assert self.room, "the plan is full"
        table = np.empty((1, of.COLUMNS))
        if self._state is None and self._first is None:
            own = struct.pack(f"{8 + len(self.nodes)}d", *call.lasts_s, *call.credits_s, *call.accepted)
            gpus, engines, values = self._records(*call.rows, own)
            known = self.now, gpus, engines, len(self.nodes), values, call.service, call.sharers
            if not loops.first_place(*known, price, table):
                return None
            self._first = call, price
        elif not loops.append(*self._arrays(), _columns([call]), self._added, price, table):
            return None
        self._added += 1
        return _place(table[0])

    def now_on(self, call: PlannableCall, price: float) -> PlannedPlace | None:
        """Return the place of least cost where a call could begin now. Nothing is added."""
        table = np.empty((1, of.COLUMNS))
        found = loops.least(*self._arrays(), _columns([call]), self._added, price, 0.0, table)
        return _place(table[0]) if found else None

    def _records(self, *more: bytes) -> tuple[int, int, Floats]:
        """Return the GPUs and the engines of all nodes, and their records one after the other, then `more`."""
        gpus, engines, values = 0, 0, list[bytes]()
        for one in self.nodes:
            gpus += one.gpus
            engines += one.engines
            values.append(one.values)
        return gpus, engines, floats((*values, *more))

    def _arrays(self) -> _PlanState:
        """Return the state of the plan."""
        if self._state is None:
            self._state = self._begin()
            if self._first is not None:
                call, price = self._first
                loops.append(*self._state, _columns([call]), 0, price, np.empty((1, of.COLUMNS)))
        return self._state

    def _begin(self) -> _PlanState:
        depths = self.together + 1
        gpus, engines, values = self._records()
        nodes, most = len(self.nodes), engines + MOST_ADDED
        firsts = np.empty((2, nodes + 1), np.int64)
        layout = of.Layout(firsts[0], firsts[1], np.empty((2, gpus)), np.empty(SIZES[-1]))
        columns = of.EngineColumns(np.empty((4, most), np.int64), np.empty((2, most)))
        states = of.States(
            np.empty((depths, gpus)),
            np.empty((depths, gpus), np.int64),
            np.zeros((depths, most), np.bool_),
            np.empty((depths, most)),
            np.empty((depths, most, MOST_SLOTS)),
            np.empty((depths, nodes), np.int64),
        )
        of.begin(self.now, values, layout, columns, states)
        return _PlanState(layout, columns, states)


def warm() -> None:
    """Compile the loops: seconds if nothing is cached on disk, else almost no time."""
    nothing = PlannableCall(0, (np.inf,) * len(SIZES), (), (), 1, NO_CREDITS)
    plan = EnginePlan((), 0.0)
    plan.search([nothing, nothing], 0.0)
    plan.append(nothing, 0.0)
    EnginePlan((), 0.0).append(nothing, 0.0)
    plan.now_on(nothing, 0.0)


def _place(one: Floats) -> PlannedPlace:
    begin_s, _, node, degree, first = one[of.BEGIN_S : of.JOINED].tolist()
    return PlannedPlace(begin_s, int(node), int(first), SIZES[int(degree)])


def _columns(calls: Sequence[PlannableCall]) -> of.Calls:
    count, kinds = len(calls), [(one.service, list(one.lasts_s), list(one.accepted)) for one in calls]
    rows = floats(row for one in calls for row in one.rows)
    return of.Calls(
        np.array([one.service for one in calls], np.int64),
        np.array([one.lasts_s for one in calls], np.float64),
        rows.reshape(count, len(calls[0].rows), len(SIZES), ROW_COLUMNS),
        np.array([one.accepted for one in calls], np.float64).reshape(count, len(calls[0].rows)),
        np.array([one.sharers for one in calls], np.float64),
        np.array([one.credits_s for one in calls], np.float64),
        np.array([kinds.index(one) for one in kinds], np.int64),
    )
