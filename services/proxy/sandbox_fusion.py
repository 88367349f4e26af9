"""SandboxFusion's `POST /run_code`, as its own server answers it, so its clients need nothing but a changed URL.

What those clients do decides how overload looks here (design/facts-trainer-clients §1, §6): verl waits compile + run +
10 s and retries 504 alone, so a call that cannot be served in time is answered 504 before the client gives up, and at
once where its start is predicted too late. Its action goes on for a minute, and the retry joins it. A failure of ours
is 504 as well, never a wrong answer.
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
from redis.exceptions import OutOfMemoryError

from services.proxy.asgi import NAME, Call, HotRoute, Reply
from services.proxy.intake import action_id, digest_of
from services.proxy.world import DEFAULT_TENANT, World
from shared.api.requests import Act
from shared.background import Background
from shared.bus import functions
from shared.bus.connection import TRANSIENT, command, patiently
from shared.errors import UNREADABLE, BadRequest, DeadlineMissed, Overloaded, Unavailable, unreadable
from shared.messages.actions import ActionSubmitted, StageWork
from shared.messages.kinds import MOST_FETCHED, MOST_FILES, CodeRun, default_units, pool_of

_encoder = msgspec.json.Encoder()
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class RunCode(msgspec.Struct, frozen=True, kw_only=True):
    """The request, tolerant like the original: unknown fields are ignored, null stdin is none, language is python."""

    code: str
    language: str = "python"
    compile_timeout: _Seconds = 10.0
    run_timeout: _Seconds = 10.0
    memory_limit_MB: int = -1  # noqa: N815  # the contract's spelling
    stdin: str | None = None
    files: Annotated[dict[str, str | None], msgspec.Meta(max_length=MOST_FILES)] = {}
    fetch_files: Annotated[list[str], msgspec.Meta(max_length=MOST_FETCHED)] = []


class _Answered(msgspec.Struct, frozen=True):
    """The parts of a stored answer this door needs."""

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
"""Names the original and its clients use, and the aliases seen in the field, in lower case."""


class Retries:
    """Actions whose callers got 504 and may come back: joinable for a while, else cancelled.

    Kept as a list for each digest, because trainers send the same body many times at once: every retry joins another
    of its actions, so that each is executed once.
    """

    def __init__(self, background: Background) -> None:
        self._background = background

    async def leave(self, world: World, digest: str, action: str) -> None:
        """Keep the action for the retry; cancel it when nobody has come."""
        key, join_s = f"retry:{digest}", world.settings.run_code_join_s
        await command(world.redis, "RPUSH", key, action)
        await command(world.redis, "PEXPIRE", key, round(join_s * 1000))
        self._background.start(self._expire(world, key, action), name="retry window")

    async def join(self, world: World, digest: str) -> str | None:
        """An action an earlier call left behind, oldest first; each is handed out once."""

        async def take() -> bytes | None:
            taken: bytes | None = await command(world.redis, "LPOP", f"retry:{digest}")
            return taken

        action = await patiently(take, what="joining", patience_s=world.settings.submit_patience_s)
        return None if action is None else action.decode()

    async def _expire(self, world: World, key: str, action: str) -> None:
        """Whoever takes the action off the list owns it: a retry, or this, which then ends it."""
        await asyncio.sleep(world.settings.run_code_join_s * 0.95)

        async def take() -> bool:
            return bool(await command(world.redis, "LREM", key, 1, action))

        async def cancel() -> None:
            await functions.cancel(world.redis, action, "its caller did not come back")

        if await patiently(take, what="taking what nobody came back for", patience_s=None):
            await patiently(cancel, what="cancelling what nobody came back for", patience_s=None)


async def post_run_code(call: Call) -> Reply:
    """POST /run_code and POST /t/{tenant}/{task}/run_code."""
    body = await call.body(call.world.settings.max_body_bytes)
    tenant, task = call.path_args or (DEFAULT_TENANT, "")
    try:
        request = _request.decode(body)
    except UNREADABLE as error:
        raise unreadable(error) from error
    _check(tenant, task, request.language)
    world = call.world
    budget_s = request.compile_timeout + request.run_timeout + world.settings.run_code_margin_s
    submitted = _submission(tenant, task, request, budget_s, world.settings.run_code_join_s)
    digest = blake2b(digest_of(submitted.stages, 0.0) + f"{tenant}\x00{task}".encode(), digest_size=12).hexdigest()
    try:
        return await _serve(world, digest, submitted, budget_s)
    except (Overloaded, Unavailable, OutOfMemoryError, *TRANSIENT) as error:
        raise DeadlineMissed(what=f"no answer could be had: {error}") from error


def _check(tenant: str, task: str, language: str) -> None:
    """Refuse what no node could ever serve; a known language that no node has is a SandboxError of the answer.

    Raises:
        BadRequest: a name in the path is none, or nobody has heard of the language.
    """
    if task and not (NAME.fullmatch(tenant) and NAME.fullmatch(task)):
        raise BadRequest(what="tenant and task in the path: letters, digits, '.', '_', '-', at most 64")
    if language.strip().lower() not in LANGUAGES:
        raise BadRequest(what=f"unknown language {language!r}; there are {', '.join(sorted(LANGUAGES))}")


async def _serve(world: World, digest: str, submitted: ActionSubmitted, budget_s: float) -> Reply:
    """Join what an earlier call left behind, or submit, and wait for the answer; all of it within the budget."""
    action = submitted.action
    try:
        async with asyncio.timeout(budget_s):
            joined = await world.retries.join(world, digest)
            action = joined or action
            return _reply(await _answer_of(world, submitted, joined))
    except TimeoutError:
        await world.retries.leave(world, digest, action)
        raise DeadlineMissed(what="no answer within compile_timeout + run_timeout + margin; retry to join it") from None


async def _answer_of(world: World, submitted: ActionSubmitted, joined: str | None) -> bytes:
    action = joined or submitted.action
    future = world.waiters.expect(action)
    try:
        if joined is None:
            await world.intake.submit(submitted)
        else:
            await world.waiters.look_up([action])
        return await future
    finally:
        world.waiters.forget(action, future)


def _submission(tenant: str, task: str, request: RunCode, budget_s: float, join_s: float) -> ActionSubmitted:
    memory = request.memory_limit_MB
    params = CodeRun(
        code=request.code,
        language=request.language,
        stdin=request.stdin,
        files=request.files,
        fetch_files=request.fetch_files,
        compile_timeout_s=request.compile_timeout,
        run_timeout_s=request.run_timeout,
        memory_mb=None if memory <= 0 else min(max(memory, 16), 65536),
    )
    units = default_units("code.run")
    stage = StageWork(
        name="run",
        kind="code.run",
        pool=pool_of(units, "default"),
        cost={name: (count, count) for name, count in units.items()},
        timeout_s=request.compile_timeout + request.run_timeout,
        params=_encoder.encode(params),
    )
    return ActionSubmitted(
        action=action_id(tenant, task, "", None),
        tenant=tenant,
        task=task,
        stages=(stage,),
        budget_s=budget_s + join_s,
        # Not the call's budget alone: whoever is told at once has used up its three tries in as many seconds, while
        # one that waits its budget out, and joins, is served as long as the retries can last.
        start_within_s=budget_s + join_s,
    )


def _reply(raw: bytes) -> Reply:
    """An answer in SandboxFusion's words, with queue_time, cpu_time and peak_memory beside them."""
    answered = _answer.decode(raw)
    if answered.ended == "refused":
        return Reply(200, _encoder.encode(_sandbox_error(answered.reason)))
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
