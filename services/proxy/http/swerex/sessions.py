"""Shell sessions. Their names are stored in Valkey for all replicas. Their commands are ordinary actions."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

import msgspec

from services.proxy.http.call import Call
from services.proxy.http.swerex.acting import OUTPUT_BYTES, act, as_text, body, request_id, within
from services.proxy.http.swerex.forms import (
    BashAction,
    BashInterruptAction,
    CloseSession,
    CreateSession,
    Raised,
    swerex_error,
)
from shared.bus.connection import with_retries
from shared.bus.sessions import ShellSessions
from shared.runtime.errors import TreadleError

P = ParamSpec("P")
T = TypeVar("T")

MOST_SESSIONS = 64
CHECK_S = 10.0
"""Timeout of bash's syntax check of a command."""
MOST_PARTIAL = 64 << 10
"""Bytes kept of a timed-out command's output: the last ones."""
PARTIAL_S = 300
PROMPT = "SHELLPS1PREFIX"
"""Prompt that the original's shells show after a command."""

_escapes = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\^_])")
_create = msgspec.json.Decoder(CreateSession)
_close = msgspec.json.Decoder(CloseSession)
_action = msgspec.json.Decoder(BashAction | BashInterruptAction)


async def create_session(call: Call, trajectory: str) -> dict[str, Any]:
    """Start a shell and source its start-up files."""
    asked = await body(call, _create)
    await _claim(call, trajectory, asked.session)
    line = " ; ".join(f"source {path}" for path in asked.startup_source) or ":"
    try:
        params = {"line": line, "session": asked.session, **as_text(line)}
        answered = await act(call, trajectory, "env.bash", params, within(asked.startup_timeout))
        if answered.ended == "timeout":
            raise swerex_error("CommandTimeoutError", f"timeout after {asked.startup_timeout} seconds: {line!r}")
    except (Raised, TreadleError):
        await _stored(call, _sessions(call, trajectory).drop, asked.session)
        raise
    return {"output": _plain(answered.output.get("output", "")), "session_type": "bash"}


async def _claim(call: Call, trajectory: str, session: str) -> None:
    """Record a new session. A repeat of the same request may record it again."""
    kept_s, sessions = await _kept_s(call, trajectory), _sessions(call, trajectory)
    token = request_id(call) or uuid.uuid4().hex
    if await _stored(call, sessions.count) >= MOST_SESSIONS:
        raise swerex_error("SwerexException", f"more than {MOST_SESSIONS} sessions")
    if not await _stored(call, sessions.claim, session, token, kept_s):
        raise swerex_error("SessionExistsError", f"session {session} already exists")


async def _kept_s(call: Call, trajectory: str) -> int:
    opened = await call.proxy.trajectories.opened(trajectory)
    return math.ceil(opened.environment.lifetime_s + call.proxy.settings.keep_trajectory_s)


async def close_session(call: Call, trajectory: str) -> dict[str, Any]:
    """End a shell. A repeat, which may find no shell or a newer one of that name, gets the first answer."""
    asked = await body(call, _close)
    token, sessions = request_id(call), _sessions(call, trajectory)
    claim = await _stored(call, sessions.token, asked.session)
    closes = await _stored(call, sessions.closes, token) if token else None
    if closes is None:
        if claim is None:
            raise _unknown(asked.session)
        closes = claim
        if token:
            await _stored(call, sessions.note_closing, token, claim, await _kept_s(call, trajectory))
    await act(call, trajectory, "env.close_session", {"session": asked.session})
    if claim == closes:
        await _stored(call, sessions.drop, asked.session)
    return {"session_type": "bash"}


async def run_in_session(call: Call, trajectory: str) -> dict[str, Any]:
    """Run a command in a shell, or handle an interrupt."""
    asked = await body(call, _action)
    await _known(call, trajectory, asked.session)
    if isinstance(asked, BashInterruptAction):
        return _observation(await _take_partial(call, trajectory, asked.session), 0)
    if asked.is_interactive_command or asked.is_interactive_quit or asked.expect:
        raise swerex_error("SwerexException", "interactive programs are not supported: environments have no terminal")
    if "\n" in asked.command.strip():  # of an unreadable single line, bash executes nothing, so no check is needed
        await _check(call, trajectory, asked.command)
    params = {"line": asked.command, "session": asked.session, "output_bytes": OUTPUT_BYTES, **as_text(asked.command)}
    answered = await act(call, trajectory, "env.bash", params, within(asked.timeout))
    if answered.ended == "timeout":
        partial = _plain(str(answered.output.get("output") or ""))
        await _keep_partial(call, trajectory, asked.session, partial)
        what = (
            f"timeout after {asked.timeout} seconds while running command {asked.command!r}. Its output:\n{partial!r}"
        )
        raise swerex_error("CommandTimeoutError", what, output=partial)
    output, exit_code = _plain(answered.output.get("output", "")), answered.output.get("exit_code")
    if exit_code and ("syntax error" in output or "unexpected EOF" in output):
        await _check(call, trajectory, asked.command)
    if asked.check == "raise" and exit_code != 0:
        prefix = f"{asked.error_msg}: " if asked.error_msg else ""
        failed = f"command {asked.command!r} failed with exit code {exit_code}. Its output:\n{output!r}"
        raise swerex_error("NonZeroExitCodeError", prefix + failed)
    return _observation(output, None if asked.check == "ignore" else exit_code)


async def _keep_partial(call: Call, trajectory: str, session: str, output: str) -> None:
    """Store a timed-out command's output for the next interrupt, which returns it as in the original."""
    kept = output.encode(errors="replace")[-MOST_PARTIAL:]
    await _stored(call, _sessions(call, trajectory).keep_output, session, kept, PARTIAL_S)


async def _take_partial(call: Call, trajectory: str, session: str) -> str:
    """Return and delete the stored output; empty if no command of the session has timed out recently."""
    sessions = _sessions(call, trajectory)
    output = await _stored(call, sessions.output, session)
    if output is None:
        return ""
    await _stored(call, sessions.drop_output, session)
    return output.decode(errors="replace")


async def _known(call: Call, trajectory: str, session: str) -> None:
    if await _stored(call, _sessions(call, trajectory).token, session) is None:
        raise _unknown(session)


def _unknown(session: str) -> Raised:
    return swerex_error("SessionDoesNotExistError", f"session {session!r} does not exist")


async def _check(call: Call, trajectory: str, line: str) -> None:
    """Check the command's syntax with bash. Without bash, the shell itself will report an error."""
    params = {"argv": ["bash", "-n"], "stdin": line}
    checked = (await act(call, trajectory, "env.exec", params, CHECK_S, step="check")).output
    exit_code, stderr = checked.get("exit_code"), str(checked.get("stderr", ""))
    if exit_code and exit_code not in (126, 127):
        extra = {"bash_stdout": str(checked.get("stdout", "")), "bash_stderr": stderr}
        what = f"bash cannot read the command {line!r} (exit code {exit_code}):\n{stderr}"
        raise swerex_error("BashIncorrectSyntaxError", what, **extra)


def _sessions(call: Call, trajectory: str) -> ShellSessions:
    return ShellSessions(call.proxy.redis, trajectory)


async def _stored(call: Call, method: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a method of the store, again while Valkey is away."""
    limit_s = call.proxy.settings.submit_retry_s
    return await with_retries(lambda: method(*args, **kwargs), what="storing sessions", limit_s=limit_s)


def _observation(output: str, exit_code: int | None) -> dict[str, Any]:
    return {
        "output": output,
        "exit_code": exit_code,
        "failure_reason": "",
        "expect_string": PROMPT,
        "session_type": "bash",
    }


def _plain(output: str) -> str:
    return _escapes.sub("", output).replace("\r\n", "\n")
