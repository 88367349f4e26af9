"""Relay of one model call: admission, the request to its worker, and the answer's bytes as they arrive.

Laws (tests/services/trajectory_router/test_relay.py):
  - the body of an answer passes byte for byte, in parts as they arrive;
  - before the first byte of a body, a worker that cannot be reached or has ended costs the client nothing: the call
    goes to another one. After it nothing is retried;
  - a worker that makes no progress is left by the calls that have no byte of an answer from it;
  - when the client's connection ends, the engine's does, so that it aborts;
  - no clock of ours ends an answer that a worker gives.

What the client gets of an answer: `delivery`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from services.trajectory_router.admission import Admission, Recalled
from services.trajectory_router.assembly import Assembly, streamed
from services.trajectory_router.delivery import Delivery, NothingDelivered, end
from services.trajectory_router.exchange import ClientGone, Exchange
from services.trajectory_router.metrics import FIRST_BYTE, QUEUED
from services.trajectory_router.recording.recorder import CallRecording
from services.trajectory_router.workers import Workers
from shared.policy.routing.model import CallEnded, ModelCall
from shared.runtime import log
from shared.runtime.errors import Forbidden
from shared.runtime.http_streams import StreamClient, Unreachable
from shared.runtime.streamed_answer import Header, StreamedAnswer

_log = log.get(__name__)

OVERLOADED: Final = frozenset({429, 503})
"""Statuses of an engine that admits no more: the call goes to another one."""
ABORT_STREAMS_ONLY: Final = frozenset({"llamacpp"})
"""Engines that run an unstreamed call to its end although its client has gone."""
CLOSES_STREAMED: Final = frozenset({"llamacpp"})
"""Engines that close the connection of a streamed answer although they announce `Keep-Alive`. A call on such a
connection fails, and would count as a failure of the engine.
"""
CLOSE: Final = (b"connection", b"close")


class EngineRequest(NamedTuple):
    """What an engine gets."""

    method: str
    target: str
    headers: Sequence[Header]
    body: bytes
    assembled: str = ""
    """Route of an answer that is not streamed, and that can be assembled from a stream; empty: it cannot."""


class Relay:
    """Carries calls between this replica's clients and workers."""

    def __init__(self, admission: Admission, engines: StreamClient, workers: Workers) -> None:
        self._admission = admission
        self._engines = engines
        self._workers = workers

    async def carry(
        self, exchange: Exchange, call: ModelCall, request: EngineRequest, recording: CallRecording | None = None
    ) -> None:
        """Answer a client with what a worker answers. `recording`: of its tokens.

        Raises:
            TreadleError: the call was refused, and nothing was sent to the client.
            ClientGone: its connection has ended.
        """
        try:
            await exchange.while_connected(lambda: self._carry(exchange, call, request, recording))
        except ClientGone:
            end(self._admission, call, "aborted")
            raise
        except asyncio.CancelledError:
            closed = self._admission.was_closed(call.id)
            end(self._admission, call, "aborted")
            task = asyncio.current_task()
            if not closed or task is None or task.uncancel():
                raise
            if exchange.started:
                raise ClientGone from None  # the server closes the connection of an incomplete answer
            raise Forbidden(what="its trajectory was closed") from None
        except BaseException:
            self._admission.ended(CallEnded(call.id, "aborted"))  # no effect if it has ended
            raise

    async def _carry(
        self, exchange: Exchange, call: ModelCall, request: EngineRequest, recording: CallRecording | None
    ) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        worker = await self._admission.place(call)
        QUEUED.observe(loop.time() - began)
        while True:
            try:
                if await self._answered(exchange, call, request, recording, worker, began):
                    return
                why = "overloaded"
            except (Unreachable, Recalled, NothingDelivered) as error:
                _log.info("worker_unreachable", worker=worker, call=call.id, error=str(error))
                why = "unreachable"
            worker = await self._admission.place_again(call.id, why, worker)

    async def _answered(
        self,
        exchange: Exchange,
        call: ModelCall,
        request: EngineRequest,
        recording: CallRecording | None,
        worker: str,
        began: float,
    ) -> bool:
        """Deliver a worker's answer. Return whether it has one; False: it admits no more calls."""
        answer = await self._admission.first_byte(call.id, self._request(worker, request, recording))
        try:
            if answer.status in OVERLOADED:
                return False
            FIRST_BYTE.observe(asyncio.get_running_loop().time() - began)
            delivery = Delivery(self._admission, exchange, call, worker, answer)
            await delivery.deliver(recording, Assembly(request.assembled) if self._assembles(worker, request) else None)
            return True
        finally:
            answer.close()

    async def _request(self, worker: str, request: EngineRequest, recording: CallRecording | None) -> StreamedAnswer:
        known = self._workers.by_id.get(worker)
        if known is None:
            raise Unreachable("it was removed")
        body, headers = request.body, request.headers
        if self._assembles(worker, request):
            body = streamed(body, request.assembled)
        if recording is not None:
            body, headers = recording.request(worker, known.engine, body, headers)
        if known.engine in CLOSES_STREAMED:
            headers = [*headers, CLOSE]
        return await self._engines.request(request.method, known.url + request.target, headers, body)

    def _assembles(self, worker: str, request: EngineRequest) -> bool:
        """Return whether an engine streams an answer that its caller gets whole."""
        known = self._workers.by_id.get(worker)
        return bool(request.assembled) and known is not None and known.engine in ABORT_STREAMS_ONLY
