"""A batch's measurements, read from its answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import msgspec

from shared.api.requests import Act, StageReport


class _Measured(msgspec.Struct, frozen=True):
    """The fields of an answer that have measurements."""

    index: int | None = None
    arrived_at: float = 0.0
    ended: str | None = None
    act: Act | None = None
    stages: list[StageReport] = []


_decoder = msgspec.json.Decoder(_Measured)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One answered request. Durations are seconds, one per stage in order; fewer if the request ended early."""

    index: int
    arrived_at: float
    """Unix seconds."""
    ended: str
    queue_s: tuple[float, ...]
    execution_s: tuple[float, ...]
    units: tuple[int, ...]
    overhead_s: float


async def read_record(pages: AsyncIterator[Sequence[tuple[str, bytes]]]) -> list[RequestRecord]:
    """Return every answered request of a batch, in the order of `pages` (`shared.store.results.Results.pages`)."""
    return [_record(answer) async for rows in pages for _, answer in rows]


def _record(answer: bytes) -> RequestRecord:
    measured = _decoder.decode(answer)
    return RequestRecord(
        index=-1 if measured.index is None else measured.index,
        arrived_at=measured.arrived_at,
        ended=measured.ended or "",
        queue_s=tuple(stage.queue_s for stage in measured.stages),
        execution_s=tuple(stage.execution_s for stage in measured.stages),
        units=tuple(stage.units for stage in measured.stages),
        overhead_s=measured.act.overhead_s if measured.act else 0.0,
    )
