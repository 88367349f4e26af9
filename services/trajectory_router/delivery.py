"""Delivery of one answer: its bytes as they arrive, assembled from a stream, or read for the record of its tokens.

The body of an answer that is not recorded passes byte for byte. A recorded one passes without what the record has
requested, and its end after the record is durable.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Literal, get_args

from services.trajectory_router.admission import Admission
from services.trajectory_router.assembled_answers import Unassembled
from services.trajectory_router.assembly import Assembly
from services.trajectory_router.exchange import ClientGone, Exchange
from services.trajectory_router.metrics import CALLS
from services.trajectory_router.recording.events import TooLong
from services.trajectory_router.recording.recorder import CallRecording
from shared.policy.routing.model import CallEnded, ModelCall
from shared.runtime import log
from shared.runtime.errors import BadGateway, Unavailable
from shared.runtime.streamed_answer import AnswerBroken, Header, StreamedAnswer

_log = log.get(__name__)

SERVED: Final = 200
FAILED: Final = 500
"""Least status that counts as a failure of an engine. It passes to the client."""
JSON: Final = (b"content-type", b"application/json")
REPLACED: Final = frozenset({b"content-type", b"content-length"})
WORKER_HEADER: Final = b"x-treadle-worker"
MOST_WHOLE: Final = 256 << 20
"""Bytes of a recorded answer that is not streamed."""

Ended = Literal["ok", "aborted", "failed"]

_ended = {outcome: CALLS.labels(outcome) for outcome in get_args(Ended)}


class NothingDelivered(Exception):
    """The engine broke off an answer of which the client has no byte: another worker may give it."""


def end(admission: Admission, call: ModelCall, outcome: Ended) -> None:
    """Report the end of a call."""
    _ended[outcome].inc()
    admission.ended(CallEnded(call.id, outcome))


@dataclass(slots=True)
class Delivery:
    """One answer on its way to the client."""

    admission: Admission
    exchange: Exchange
    call: ModelCall
    worker: str
    answer: StreamedAnswer

    async def deliver(self, recording: CallRecording | None, assembly: Assembly | None) -> None:
        """Answer the client.

        Args:
            recording: of its tokens.
            assembly: the engine streams what the client gets whole.

        Raises:
            NothingDelivered: the call may go to another worker.
            TreadleError: nothing was sent to the client.
            ClientGone: nobody reads the rest, or it cannot be completed.
        """
        if self.answer.status != SERVED:
            await self._pass()
        elif recording is not None and recording.reads:
            await self._record(recording, assembly)
        else:
            if recording is not None:
                await recording.commit()
            await (self._pass() if assembly is None else self._assemble(assembly))

    async def _pass(self) -> None:
        await self._start(self.answer.headers, self.answer.status)
        ended: Ended = "failed" if self.answer.status >= FAILED else "ok"
        data = self._first()
        if self.answer.is_whole:
            self._end(ended)
            await self.exchange.part(data, last=True)
            return
        try:
            while data:
                await self.exchange.part(data)
                data = await self._next()
        except AnswerBroken as error:
            self._broken(error)
            raise ClientGone from error  # the server closes the connection of an incomplete answer
        self._end(ended)
        await self.exchange.part(b"", last=True)

    async def _assemble(self, assembly: Assembly) -> None:
        try:
            data = self._first()
            while data:
                assembly.feed(data)
                data = await self._next()
            whole = assembly.whole()
        except AnswerBroken as error:
            raise NothingDelivered(str(error)) from error
        except Unassembled as error:
            raise self._broken(error) from error
        self._end("ok")
        await self._reply(whole)

    # ---- recorded answers ----------------------------------------------------------------------------------------

    async def _record(self, recording: CallRecording, assembly: Assembly | None) -> None:
        try:
            if not _is_stream(self.answer):
                await self._record_whole(recording)
            elif assembly is None:
                await self._record_stream(recording)
            else:
                await self._record_assembled(recording, assembly)
        except (AnswerBroken, Unassembled, TooLong) as error:
            if isinstance(error, AnswerBroken) and not self.exchange.started:
                raise NothingDelivered(str(error)) from error  # its record begins anew with the next worker
            recording.cut_off("its engine has broken the answer off")
            broken = self._broken(error)
            raise (ClientGone if self.exchange.started else broken) from error
        except BaseException as error:
            recording.cut_off("its caller has gone" if isinstance(error, asyncio.CancelledError) else "it has failed")
            raise

    async def _record_whole(self, recording: CallRecording) -> None:
        parts: list[bytes] = []
        size, data = 0, self._first()
        while data:
            parts.append(data)
            size += len(data)
            if size > MOST_WHOLE:
                raise TooLong(f"the answer has more than {MOST_WHOLE} bytes")
            data = await self._next()
        self._end("ok")
        whole = recording.whole(b"".join(parts))
        await recording.commit()
        await self._reply(whole)

    async def _record_stream(self, recording: CallRecording) -> None:
        stream = recording.stream()
        await self._start([header for header in self.answer.headers if header[0] != b"content-length"])
        data = self._first()
        while data:
            if passed := stream.feed(data):
                await self.exchange.part(passed)
            data = await self._next()
        self._end("ok")
        try:
            await recording.commit()
        except Unavailable as error:
            raise ClientGone from error  # without its end, the answer is not complete
        await self.exchange.part(stream.end(), last=True)

    async def _record_assembled(self, recording: CallRecording, assembly: Assembly) -> None:
        stream, data = recording.stream(), self._first()
        while data:
            assembly.feed(stream.feed(data))
            data = await self._next()
        assembly.feed(stream.end())
        whole = assembly.whole()
        self._end("ok")
        await recording.commit()
        await self._reply(whole)

    # ---- parts ---------------------------------------------------------------------------------------------------

    def _first(self) -> bytes:
        self.admission.progressed(self.call.id, asyncio.get_running_loop().time())
        return self.answer.first

    async def _next(self) -> bytes:
        data = await self.answer.next()
        self.admission.progressed(self.call.id, asyncio.get_running_loop().time())
        return data

    async def _start(self, headers: list[Header], status: int = SERVED) -> None:
        await self.exchange.start(status, [*headers, (WORKER_HEADER, self.worker.encode())])

    async def _reply(self, whole: bytes) -> None:
        """Send an answer whose body is written anew."""
        kept = [(name, value) for name, value in self.answer.headers if name not in REPLACED]
        await self.exchange.reply(SERVED, whole, [*kept, JSON, (WORKER_HEADER, self.worker.encode())])

    def _end(self, outcome: Ended) -> None:
        end(self.admission, self.call, outcome)

    def _broken(self, error: Exception) -> BadGateway:
        _log.warning("answer_broken", worker=self.worker, call=self.call.id, error=str(error))
        self._end("failed")
        return BadGateway(what=f"the engine has broken its answer off: {error}")


def _is_stream(answer: StreamedAnswer) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in answer.headers)
