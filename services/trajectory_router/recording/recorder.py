"""Record of one call: its request with what the record needs, its answer without it, and the commit before its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from services.trajectory_router.recording.events import Event, EventSplitter
from services.trajectory_router.recording.formats import reader_of
from services.trajectory_router.recording.reader import ABORTED, Fields, Sampled, SampledChoice, TokenReader
from services.trajectory_router.recording.writer import TokenWriter
from services.trajectory_router.workers import Workers
from shared.bus.connection import ValkeyClock
from shared.runtime import log
from shared.runtime.background import Background
from shared.runtime.errors import Unavailable
from shared.runtime.http_streams import StreamClient
from shared.runtime.streamed_answer import Header
from shared.runtime.units import Seconds
from shared.tokens.calls import CallRecord, CallStatus

_log = log.get(__name__)

DONE: Final = b"[DONE]"
HEADERS: Final = frozenset({b"accept-encoding"})
"""Headers that the engine of a recorded call does not get: its answer is read."""
MOST_TEXT: Final = 500
_decode = msgspec.json.decode
_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class TokenRecorder:
    """Makes records of calls."""

    writer: TokenWriter
    engines: StreamClient
    workers: Workers
    background: Background
    clock: ValkeyClock

    async def begin(self, trajectory: str, tenant: str, call: str, route: str) -> CallRecording:
        """Return the record of a call that is about to begin.

        Raises:
            Unavailable: Postgres does not answer.
            Conflict: the trajectory's record is full.
        """
        await self.writer.ready(trajectory)
        return CallRecording(self, trajectory, tenant, call, route, self.clock.unix())


@dataclass(slots=True)
class CallRecording:
    """Record of one call. A call that is sent to another worker begins anew."""

    recorder: TokenRecorder
    trajectory: str
    tenant: str
    call: str
    route: str
    began_at: Seconds
    worker: str = ""
    fields: Fields = field(default_factory=dict)
    reader: TokenReader | None = None
    reason: str = ""
    ended_at: Seconds = 0.0
    _committed: bool = False

    def request(self, worker: str, engine: str, body: bytes, headers: Sequence[Header]) -> tuple[bytes, list[Header]]:
        """Return body and headers of a call to a worker, with what the record needs."""
        self.worker, self.fields = worker, _decode(body)
        found = reader_of(engine, self.route, self.fields)
        kept = [(name, value) for name, value in headers if name not in HEADERS]
        if isinstance(found, str):
            self.reader, self.reason = None, found
            return body, kept
        self.reader, self.reason = found, ""
        fields, more = found.request()
        given = {name for name, _ in headers}
        return _encode(fields), [*kept, *(one for one in more if one[0] not in given)]

    @property
    def reads(self) -> bool:
        """False: the engine reports no ids, so its answer passes as it is."""
        return self.reader is not None

    def stream(self) -> RecordedStream:
        """Return what takes the events of the answer."""
        assert self.reader is not None
        return RecordedStream(self.reader)

    def whole(self, body: bytes) -> bytes:
        """Take a whole answer. Return what the client gets."""
        assert self.reader is not None
        try:
            event: Any = _decode(body)
        except msgspec.DecodeError:
            self.reason = "the engine's answer is not JSON"
            return body
        if not isinstance(event, dict):
            self.reason = "the engine's answer is no JSON object"
            return body
        return _encode(event) if self.reader.take(event) == "changed" else body

    async def commit(self, cut: str = "") -> None:
        """Store the call, and return when that is durable. No effect if it was stored.

        Args:
            cut: why its answer has ended early; empty: it has not.

        Raises:
            Unavailable: it is not stored.
        """
        if self._committed:
            return
        self.ended_at = self.recorder.clock.unix()
        records = _records(self, await self._sampled(), cut)
        self._committed = True  # `append` takes them at once, also if this task is cancelled then
        await self.recorder.writer.append(self.trajectory, self.tenant, records)

    def cut_off(self, reason: str) -> None:
        """Store in the background what has arrived of an answer that nobody waits for."""
        if not self._committed:
            self.recorder.background.start(self._commit_late(reason), name=f"record of {self.call}")

    async def _commit_late(self, reason: str) -> None:
        try:
            await self.commit(reason)
        except Unavailable as error:
            _log.warning("record_lost", call=self.call, trajectory=self.trajectory, error=str(error))

    async def _sampled(self) -> Sampled:
        if self.reader is None:
            return Sampled(None, {}, None, self.reason)
        known = self.recorder.workers.by_id.get(self.worker)
        sampled = await self.reader.sampled(self.recorder.engines, "" if known is None else known.url)
        return sampled._replace(error=self.reason or sampled.error)


class RecordedStream:
    """Events of a recorded answer on their way to the client. The last ones are held until the record is durable."""

    def __init__(self, reader: TokenReader) -> None:
        self._reader = reader
        self._events = EventSplitter()
        self._held: list[bytes] = []
        self._done = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes as they arrive. Return what the client gets now."""
        passed: list[bytes] = []
        for event in self._events.feed(data):
            self._done = self._done or event.data == DONE
            (self._held if self._done else passed).append(self._passed(event))
        return b"".join(passed)

    def end(self) -> bytes:
        """Return what the client gets after the commit."""
        return b"".join(self._held) + self._events.rest()

    def _passed(self, event: Event) -> bytes:
        if not event.data.startswith(b"{"):
            return event.raw
        try:
            found = _decode(event.data)
        except msgspec.DecodeError:
            return event.raw
        change = self._reader.take(found)
        if change == "dropped":
            return b""
        return event.with_data(_encode(found)) if change == "changed" else event.raw


# ---- records ---------------------------------------------------------------------------------------------------------


def _records(call: CallRecording, sampled: Sampled, cut: str) -> list[CallRecord]:
    """Return one record for each choice; one without ids if there is none."""
    choices = sampled.choices if sampled.prompt is not None else {}
    if not any(choice.ids for choice in choices.values()):
        reason = sampled.error or call.reason or cut or "the engine has reported no ids"
        return [_record(call, 0, SampledChoice(), (), "no-ids", reason)]
    counted = sum(len(choice.ids) for choice in choices.values())
    records = []
    for index, choice in sorted(choices.items()):
        status, reason = _status(choice, sampled, cut, counted)
        records.append(_record(call, index, choice, tuple(sampled.prompt or ()), status, reason))
    return records


def _status(choice: SampledChoice, sampled: Sampled, cut: str, counted: int) -> tuple[CallStatus, str]:
    if cut:
        return "aborted", cut
    if choice.finish_reason == ABORTED:
        return "aborted", "its engine has ended it early"
    if sampled.error:
        return "incomplete", sampled.error
    if not choice.finish_reason:
        return "incomplete", "the engine has reported no end"
    if sampled.completion_tokens is not None and sampled.completion_tokens != counted:
        return "incomplete", f"the engine has reported {counted} ids of {sampled.completion_tokens} tokens"
    return "complete", ""


def _record(
    call: CallRecording, index: int, choice: SampledChoice, prompt: tuple[int, ...], status: CallStatus, reason: str
) -> CallRecord:
    fields = call.fields
    temperature = fields.get("temperature")
    params = fields.get("sampling_params")
    if temperature is None and isinstance(params, dict):
        temperature = params.get("temperature")
    has_all = len(choice.logprobs) == len(choice.ids) and bool(choice.ids)
    reader = call.reader
    return CallRecord(
        serial=0,
        call=f"{call.call}#{index}" if index else call.call,
        prompt=prompt,
        output=tuple(choice.ids),
        logprobs=tuple(choice.logprobs) if has_all else None,
        logprobs_of=reader.logprobs_of if reader is not None and has_all else "",
        temperature=float(temperature) if isinstance(temperature, int | float) else None,
        versions=tuple(one for one in choice.versions if 0 <= one.start < one.end <= len(choice.ids)),
        finish_reason=_text(choice.finish_reason),
        status=status,
        reason=_text(reason),
        route=call.route,
        model=_text(str(fields.get("model") or "")),
        worker=call.worker,
        created_s=call.began_at,
        ended_s=call.ended_at,
    )


def _text(text: str) -> str:
    """Return a text that Postgres takes: short, without NUL and lone surrogates."""
    return text[:MOST_TEXT].replace("\0", "").encode("utf-8", "replace").decode()
