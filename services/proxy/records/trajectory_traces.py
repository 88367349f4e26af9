"""Traces of trajectories: their actions, the actions that were submitted for them, and their recorded model calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
from redis.asyncio import Redis

from services.proxy.records.token_records import TokenRecords
from services.proxy.records.trace_spans import trace_of
from services.proxy.records.trajectory_service import RETRY_LIMIT_S, TrajectoryService, unknown
from shared.api.tokens import RecordedCall
from shared.api.trajectories import TrajectoryView
from shared.bus.connection import ValkeyClock, with_retries
from shared.bus.traces import TracedAction, read_trace
from shared.runtime.units import Seconds

_json = msgspec.json.Encoder().encode


class TrajectoryTraces:
    """Reads traces."""

    def __init__(self, redis: Redis, clock: ValkeyClock, trajectories: TrajectoryService, tokens: TokenRecords) -> None:
        self._redis = redis
        self._clock = clock
        self._trajectories = trajectories
        self._tokens = tokens
        self._composing = asyncio.Semaphore(1)  # several threads would only share one lock

    async def trace(self, trajectory: str, tenant: str) -> bytes:
        """Return the trace of a trajectory as OTLP/JSON (`shared.api.otlp.TraceData`). O(its actions and model calls).

        Raises:
            NotFound: the tenant has no such trajectory.
            Unavailable: a store does not answer, or too many token records are being read.
        """
        view = await self._trajectories.view(trajectory)
        if view.tenant != tenant:
            raise unknown(trajectory)

        async def read() -> dict[str, TracedAction]:
            return await read_trace(self._redis, trajectory)

        actions = await with_retries(read, what="reading a trace", limit_s=RETRY_LIMIT_S)
        calls: list[RecordedCall] = [] if view.record is None else await self._tokens.recorded(trajectory)
        async with self._composing:
            return await asyncio.to_thread(_composed, view, actions, calls, self._clock.unix())


def _composed(
    view: TrajectoryView, actions: Mapping[str, TracedAction], calls: Sequence[RecordedCall], now: Seconds
) -> bytes:
    """Return the body. In a thread: 0.1 s for 1,024 actions, in which the event loop continues."""
    return _json(trace_of(view, actions, calls, now))
