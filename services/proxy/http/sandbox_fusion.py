"""SandboxFusion's `POST /run_code`, answered as its own server does. Its clients need only another URL.

Overload is reported so that those clients handle it correctly (docs/decisions/0035). A caller whose timeout counts
between bytes is held until its program has run (`held`). Any other caller gets 504 before it gives up. Its action
continues for a minute, and the retry joins it. An infrastructure failure is 504 or a SandboxError, not a wrong answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from redis.exceptions import OutOfMemoryError

from services.proxy.http.asgi import HotRoute
from services.proxy.http.call import Call
from services.proxy.http.replies import Reply, Streamed
from services.proxy.http.retries import digest_of_call
from services.proxy.metrics import RUN_CODE
from services.proxy.records.ids import random_id
from services.proxy.state import DEFAULT_TENANT
from shared.api.requests import Act
from shared.bus.connection import TRANSIENT
from shared.kinds.registry import all_kinds
from shared.kinds.spec import Params
from shared.kinds.staging import StageForm
from shared.messages.actions import ActionSubmitted
from shared.runtime.errors import SHOWN_CHARS, BadRequest, DeadlineMissed, Overloaded, Unavailable
from shared.runtime.patterns import NAME, WORDS, is_name
from shared.runtime.validation import decoded

_encoder = msgspec.json.Encoder()
MOST_FILES, MOST_FETCHED = 4096, 1024
"""Bounds of `files` and `fetch_files`, as the kind `code.run` has them."""
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class RunCode(msgspec.Struct, frozen=True, kw_only=True):
    """The request, as tolerant as the original: unknown fields are ignored, null stdin is none, default is python."""

    code: str
    language: str = "python"
    compile_timeout: _Seconds = 10.0
    run_timeout: _Seconds = 10.0
    memory_limit_MB: int = -1  # noqa: N815  # the contract's spelling
    stdin: str | None = None
    files: Annotated[dict[str, str | None], msgspec.Meta(max_length=MOST_FILES)] = {}
    fetch_files: Annotated[list[str], msgspec.Meta(max_length=MOST_FETCHED)] = []


class _Answered(msgspec.Struct, frozen=True):
    """The fields of a stored answer that this route needs."""

    ended: str
    reason: str = ""
    output: dict[str, Any] = {}
    act: Act | None = None
    stages: list[dict[str, Any]] = []
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0


_request = msgspec.json.Decoder(RunCode, strict=False)
_answer = msgspec.json.Decoder(_Answered)


LANGUAGES = frozenset(
    (
        *("python", "cpp", "nodejs", "go", "go_test", "java", "php", "csharp", "bash", "typescript", "sql", "rust"),
        *("cuda", "r", "perl", "d_ut", "ruby", "scala", "julia", "pytest", "junit", "kotlin_script", "jest", "verilog"),
        *("lean", "swift", "racket", "python_gpu", "lua", "python2", "gtest", "react", "py", "py3", "python3", "js"),
        *("node", "javascript", "ts", "c", "c++", "cxx", "cc", "golang", "rs", "sh", "shell"),
    )
)
"""Names that the original and its clients use, and common aliases, in lower case."""


async def post_run_code(call: Call) -> Reply | Streamed:
    """POST /run_code and POST /t/{tenant}/{task}/run_code."""
    tenant, task = call.path_args or (DEFAULT_TENANT, "")
    proxy, settings = call.proxy, call.proxy.settings
    try:
        request = decoded(_request, await call.body(settings.max_body_bytes))
        _check(tenant, task, request.language)
        budget_s = request.compile_timeout + request.run_timeout + settings.run_code_margin_s
        submitted = _submission(tenant, task, request, budget_s, settings.run_code_join_s)
        if proxy.held.holds(call):
            return await proxy.held.serve(call, submitted, _reply, _failure)
        return await _serve(call, submitted, budget_s)
    except (Overloaded, Unavailable, OutOfMemoryError, *TRANSIENT) as error:
        raise DeadlineMissed(what=f"no answer: {error}") from error


def _check(tenant: str, task: str, language: str) -> None:
    """Reject what no node can ever serve. A known language that no node has gives a SandboxError in the answer.

    Raises:
        BadRequest: an invalid name in the path, or an unknown language.
    """
    if task and not (is_name(tenant) and is_name(task)):
        raise BadRequest(what=f"tenant and task in the path: each must be {WORDS[NAME]}")
    if language.strip().lower() not in LANGUAGES:
        shown = language[:SHOWN_CHARS]
        raise BadRequest(what=f"unknown language {shown!r}; there are {', '.join(sorted(LANGUAGES))}")


async def _serve(call: Call, submitted: ActionSubmitted, budget_s: float) -> Reply:
    """Join an earlier call's action or submit a new one, then wait for the answer; all within the budget."""
    proxy, digest = call.proxy, digest_of_call(submitted)
    action = submitted.action
    try:
        async with asyncio.timeout(budget_s):
            joined = await proxy.retries.join(digest)
            action = joined or action
            raw = await _answer_of(call, submitted, joined)
    except TimeoutError:
        RUN_CODE.labels("late").inc()
        await proxy.retries.leave(digest, action)
        raise DeadlineMissed(what="no answer within compile_timeout + run_timeout + margin; retry to join it") from None
    except asyncio.CancelledError:  # the server stops, and its grace period is over
        RUN_CODE.labels("stopped").inc()
        await proxy.retries.leave_and_stop(digest, action)
        raise DeadlineMissed(what="this proxy is stopping; retry to join the action") from None
    if raw is None:
        RUN_CODE.labels("disconnected").inc()
        proxy.retries.cancel(action, "its caller has gone")
        return Reply(200, b"")
    RUN_CODE.labels("answered").inc()
    return _reply(raw)


async def _answer_of(call: Call, submitted: ActionSubmitted, joined: str | None) -> bytes | None:
    """Return the action's answer; None if the caller has gone first."""
    proxy, action = call.proxy, joined or submitted.action
    future = proxy.waiters.expect(action)
    gone: asyncio.Future[None] = asyncio.create_task(call.gone(), name="caller")
    first: set[asyncio.Future[Any]] = {future, gone}
    try:
        if joined is None:
            await proxy.intake.submit(submitted)
        else:
            await proxy.waiters.look_up([action])
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        return future.result() if future.done() else None
    finally:
        gone.cancel()
        proxy.waiters.discard(action, future)


def _submission(tenant: str, task: str, request: RunCode, budget_s: float, join_s: float) -> ActionSubmitted:
    memory = request.memory_limit_MB
    form = StageForm.of(all_kinds().kind("code.run"))
    make: Callable[..., Params] = form.spec.params
    params = make(
        code=request.code,
        language=request.language,
        stdin=request.stdin,
        files=request.files,
        fetch_files=request.fetch_files,
        compile_timeout_s=request.compile_timeout,
        run_timeout_s=request.run_timeout,
        memory_mb=None if memory <= 0 else min(max(memory, 16), 65536),
    )
    stage = form.stage(_encoder.encode(params), timeout_s=request.compile_timeout + request.run_timeout)
    return ActionSubmitted(
        action=random_id(),
        tenant=tenant,
        task=task,
        stages=(stage,),
        budget_s=budget_s + join_s,
        # The call's budget alone would be too short. A caller that gets 504 at once uses up its three attempts in as
        # many seconds. One that waits for its budget and joins is served for as long as its retries can last.
        start_within_s=budget_s + join_s,
    )


def _reply(raw: bytes) -> Reply:
    """Return an answer in SandboxFusion's format, with queue_time, cpu_time and peak_memory added."""
    answered = _answer.decode(raw)
    if answered.ended == "refused":
        return Reply(200, _failure(answered.reason))
    if answered.ended not in ("ok", "timeout") or "status" not in answered.output:
        queue_s = answered.act.queue_s if answered.act else None
        raise DeadlineMissed(what=f"{answered.ended}: {answered.reason or 'try again'}", queue_s=queue_s)
    extra = {
        "executor_pod_name": answered.stages[-1]["node"] if answered.stages else None,
        "queue_time": answered.act.queue_s if answered.act else 0.0,
        "cpu_time": answered.cpu_s,
        "peak_memory": answered.peak_memory_bytes,
    }
    return Reply(200, _encoder.encode({"files": {}, **answered.output, **extra}))


def _failure(message: str) -> bytes:
    """Return the body for an infrastructure failure."""
    return _encoder.encode(_sandbox_error(message))


def _sandbox_error(message: str) -> dict[str, Any]:
    return {
        "status": "SandboxError",
        "message": message,
        "compile_result": None,
        "run_result": None,
        "executor_pod_name": None,
        "files": {},
    }


async def get_ping(call: Call) -> Reply:
    """GET /v1/ping."""
    del call
    return Reply(200, b'"pong"')


RUN_CODE_ROUTES = [
    HotRoute("POST", "/run_code", post_run_code),
    HotRoute("POST", "/run_code/", post_run_code),
    HotRoute("POST", "/t/{tenant}/{task}/run_code", post_run_code),
    HotRoute("POST", "/t/{tenant}/{task}/run_code/", post_run_code),
    HotRoute("GET", "/v1/ping", get_ping),
]
