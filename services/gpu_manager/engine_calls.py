"""Calls of engines: one bounded POST each, and what its answer means for the attempt.

| end of a call | error | the attempt |
| --- | --- | --- |
| the connection breaks | `EngineGone` | is lost, and is repeated. The engine may have died |
| 409, 500, 502, 504 ... | `EngineError`, `OutOfMemory` | is lost, and is repeated. After three the engine is checked |
| 408, 425, 429, 503 | `EngineBusy` | may be repeated after `retry_in_s` |
| another status above 299 | `CallRefused` | is `refused`: the engine rejects these parameters |
| the deadline | `OutOfTime` | is `upstream-failed` |
| a 200 that cannot be read | `BadAnswer` | is `upstream-failed`, or the engine is asked again |

A lost attempt is repeated after a pause (`executor.failed_call`).

Law: an answer is hostile. Its body is read up to a bound, is not decompressed, and is decoded into a typed form. A
call ends at its deadline, whatever the engine sends. A cancelled call closes its connection, so the engine aborts it.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from services.gpu_manager.backends.protocol import EngineError, EngineGone, OutOfMemory, means_out_of_memory
from services.gpu_manager.kinds import ModelEmbed, ModelScore
from shared.kinds.scoring import scaled
from shared.model_services.entries import Api
from shared.policy.model.results import AttemptResult, refused
from shared.runtime.http_streams import StreamClient, Unreachable
from shared.runtime.streamed_answer import AnswerBroken, Header, StreamedAnswer
from shared.runtime.units import Seconds
from shared.runtime.validation import UNREADABLE

MOST_BODY: Final = 16 << 20
"""Bytes of an answer."""
MOST_ERROR: Final = 64 << 10
"""Bytes that are read of an answer with an error."""
MOST_REASON: Final = 400
"""Characters of a reason."""
SHOWN_BODY: Final = 200
MOST_RETRY_S: Final[Seconds] = 3600.0
BUSY: Final = frozenset({408, 425, 429, 503})
"""Statuses of an engine that has not executed the call and may execute it later."""
CONFLICT: Final = 409
"""Status of our server while its model is evicted, and of a request that was aborted."""
NO_MEMORY: Final = 507
"""Status of our server if its device has too little memory."""
HEADERS: Final[list[Header]] = [(b"content-type", b"application/json")]
CLOSING_S: Final[Seconds] = 1.0
"""Time after the beginning of a call in which the end of its kept connection counts as the end of an idle one."""
MOST_COUNTED: Final = 1e12
"""Most tokens of one call; a larger number is not believed."""
_SECONDS: Final = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,9})?")
_encode: Final = msgspec.json.Encoder().encode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """A resident engine."""

    url: str
    """Base address, without a slash at its end."""
    api: Api
    model: str
    """Name of the model in calls."""
    service: str = ""
    """Name of the model service, for messages."""
    keeps_connections: bool = False
    """Its calls share connections."""
    gpus: float = 1.0
    """GPUs of one action: its degree of parallelism, divided by the actions that may share them."""


@dataclass(frozen=True, slots=True)
class EngineAttempt:
    """One attempt's way to its engine."""

    engine: EngineAddress
    http: StreamClient
    deadline: Seconds
    """Time on the event loop's clock at which the attempt ends."""
    output_bytes: int = 4 << 20
    """Largest output. A longer completion is cut and flagged; longer lists of numbers have failed."""


class EngineBusy(Exception):
    """The engine has not executed the call, and may execute it later."""

    def __init__(self, reason: str, retry_in_s: Seconds) -> None:
        self.reason = reason[:MOST_REASON]
        self.retry_in_s = retry_in_s
        """Seconds before which it wants no call; 0: it has named none."""
        super().__init__(self.reason)


class CallRefused(ValueError):
    """The engine rejects these parameters, or its API has no such call. A repeat would end alike."""


class OutOfTime(Exception):
    """The deadline came before the answer."""


class BadAnswer(ValueError):
    """An answer that has another form than its API's. The message says which part."""


class NoVerdict(Exception):
    """An answer that is complete and of which no score may be formed: a cut completion, a refusal, a filter."""


class Spent:
    """Amounts that one attempt has used so far."""

    __slots__ = ("_began", "_gpus", "tokens")

    def __init__(self, call: EngineAttempt) -> None:
        self._began = asyncio.get_running_loop().time()
        self._gpus = call.engine.gpus
        self.tokens = 0.0

    def count(self, usage: Any) -> None:
        """Add the tokens of an answer's `usage`, if it is one."""
        total = usage.get("total_tokens") if isinstance(usage, dict) else None
        if isinstance(total, int | float) and not isinstance(total, bool) and 0 < total <= MOST_COUNTED:
            self.tokens += total

    def usage(self) -> dict[str, float]:
        """Return the usage of the attempt's result."""
        gpu_s = (asyncio.get_running_loop().time() - self._began) * self._gpus
        return {"gpu_s": gpu_s, **({"tokens": self.tokens} if self.tokens else {})}


async def post(call: EngineAttempt, path: str, document: dict[str, Any], answer: msgspec.json.Decoder[T]) -> T:
    """Send one POST, and return its answer.

    Raises:
        EngineGone: the connection broke.
        EngineError: the engine failed; its subclass OutOfMemory: it has too little device memory.
        EngineBusy: it has not executed the call.
        CallRefused: it rejects the call.
        OutOfTime: the deadline came first.
        BadAnswer: the answer is too large, or of another form.
    """
    try:
        async with asyncio.timeout_at(call.deadline):
            body = await _posted(call, path, document)
    except TimeoutError:
        raise OutOfTime from None
    except Unreachable as error:
        raise EngineGone(f"the engine did not answer: {error}") from error
    except AnswerBroken as error:
        raise EngineGone(f"the engine broke its answer off: {error}") from error
    try:
        return answer.decode(body)
    except UNREADABLE as error:
        raise BadAnswer(f"the engine's answer cannot be read: {_shown(str(error))}") from error


async def _posted(call: EngineAttempt, path: str, document: dict[str, Any]) -> bytes:
    answer = await _begun(call, path, _encode(document))
    try:
        if 200 <= answer.status < 300:
            body, is_whole = await _read(answer, MOST_BODY)
            if not is_whole:
                raise BadAnswer(f"the engine's answer has more than {MOST_BODY} bytes")
            return body
        body, _ = await _read(answer, MOST_ERROR)
        said = f"the engine answered {answer.status}: {message_of(body)}".removesuffix(": ")
        if answer.status in BUSY:
            raise EngineBusy(said, retry_in_s(answer.headers))
        if answer.status == NO_MEMORY or (answer.status >= 500 and means_out_of_memory(said)):
            raise OutOfMemory(said)
        if answer.status >= 500 or answer.status == CONFLICT:
            raise EngineError(said)
        raise CallRefused(said)
    finally:
        answer.close()


async def _begun(call: EngineAttempt, path: str, body: bytes) -> StreamedAnswer:
    """Send a call. If a kept connection ends at this moment, send it once more on a new one.

    An engine closes a kept connection some day. One that has ended refuses the new one, unless something else listens
    at its address.
    """
    loop, engine = asyncio.get_running_loop(), call.engine
    began, url = loop.time(), engine.url + path
    if engine.keeps_connections:
        try:
            return await call.http.request("POST", url, HEADERS, body)
        except Unreachable as error:
            if not error.kept_ended or loop.time() - began > CLOSING_S:
                raise
    return await call.http.request("POST", url, HEADERS, body, new_connection=True)


async def _read(answer: StreamedAnswer, most: int) -> tuple[bytes, bool]:
    """Return a body up to a bound, and whether that is all of it."""
    body, part = bytearray(), answer.first
    while part and len(body) <= most:
        body += part
        part = await answer.next()
    return bytes(body[:most]), len(body) <= most


def retry_in_s(headers: list[Header]) -> Seconds:
    """Return the seconds of `Retry-After`; 0 if there is none, or a date: engines write seconds."""
    text = next((value.strip() for name, value in headers if name == b"retry-after"), b"")
    return min(float(text), MOST_RETRY_S) if _SECONDS.fullmatch(text) else 0.0


def message_of(body: bytes) -> str:
    """Return the message of an answer with an error, as one line: that of the API's form, else the body's beginning."""
    found: Any = None
    with suppress(*UNREADABLE):
        found = msgspec.json.decode(body)
    for name in ("error", "message", "detail"):  # {"error": {"message": ...}}, {"message": ...}, {"detail": ...}
        if isinstance(found, dict) and isinstance(inner := found.get(name), str | dict):
            found = inner
    return _shown(found if isinstance(found, str) else body[: 4 * SHOWN_BODY].decode("utf-8", "replace"))


def _shown(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:SHOWN_BODY]


def upstream_failed(reason: str, spent: Spent, output: bytes | None = None) -> AttemptResult:
    """Return the result of an attempt that has no verdict and is not repeated."""
    result = AttemptResult("upstream-failed", reason=reason[:MOST_REASON], usage=spent.usage())
    return result if output is None else msgspec.structs.replace(result, output=output)


def rejected(reason: str, spent: Spent) -> AttemptResult:
    """Return the result of a call that the engine rejects."""
    return msgspec.structs.replace(refused(reason[:MOST_REASON]), usage=spent.usage())


def check_count(what: str, found: int, asked: int) -> None:
    """Raise `BadAnswer` if an answer has another number of values than inputs."""
    if found != asked:
        raise BadAnswer(f"the engine's answer has {found} {what} for {asked} inputs")


def numbers_result(
    name: str, numbers: list[float], params: ModelScore | ModelEmbed, call: EngineAttempt, spent: Spent
) -> AttemptResult:
    """Return the result with these numbers in its output. One number is also the score of the action.

    Raises:
        NoScore: the score is not finite after its scale.
    """
    output = _encode({name: numbers})
    if len(output) > call.output_bytes:
        return upstream_failed(too_long(name, len(output), call.output_bytes), spent)
    if len(numbers) != 1:
        return AttemptResult("ok", output=output, usage=spent.usage())
    score = scaled(numbers[0], params.scale)
    passed = None if params.pass_at is None else score >= params.pass_at
    return AttemptResult("ok", passed, score, output, usage=spent.usage(), evidence="separate")


def too_long(name: str, size: int, limit: int) -> str:
    """Return the reason for an output that does not fit. Nothing is cut: a trainer would use the rest."""
    return f"the {name} have {size} bytes, and a result may have {limit}; send less in one action"
