"""Commands outside any session, and files."""

from __future__ import annotations

import asyncio
import base64
import codecs
import io
from typing import Any

import msgspec

from services.proxy.http.call import Call
from services.proxy.http.swerex.acting import OUTPUT_BYTES, ActionEnd, act, as_text, body, within
from services.proxy.http.swerex.forms import Command, Raised, ReadFile, WriteFile, decode_upload, os_error, swerex_error
from services.proxy.http.swerex.repacking import to_tar

_command = msgspec.json.Decoder(Command)
_read = msgspec.json.Decoder(ReadFile)
_write = msgspec.json.Decoder(WriteFile)

_SLOW = frozenset({"punycode", "idna"})
"""Encodings of host names, not of files. Their run time is quadratic in the length of the text."""
_MOST_ENCODING = 64


async def execute(call: Call, trajectory: str) -> dict[str, Any]:
    """Run a command outside any shell session."""
    asked = await body(call, _command)
    argv = _argv(asked)
    params = {"argv": argv, "cwd": asked.cwd or "", "output_bytes": OUTPUT_BYTES, **as_text(*argv)}
    answered = await act(call, trajectory, "env.exec", params, within(asked.timeout))
    if answered.ended == "timeout":
        partial = {name: str(answered.output.get(name) or "") for name in ("stdout", "stderr")}
        shown = f"Stdout:\n{partial['stdout']!r}\nStderr:\n{partial['stderr']!r}"
        what = f"timeout ({asked.timeout} s) exceeded while running command. {shown}"
        raise swerex_error("CommandTimeoutError", what, **partial)
    if said := answered.output.get("error"):
        raise os_error(str(said))
    stdout, stderr, exit_code = (answered.output.get(name) for name in ("stdout", "stderr", "exit_code"))
    if asked.check and exit_code != 0:
        prefix = f"{asked.error_msg}: " if asked.error_msg else ""
        failed = f"command {asked.command!r} failed with exit code {exit_code}."
        raise swerex_error("NonZeroExitCodeError", f"{prefix}{failed} Stdout:\n{stdout!r}\nStderr:\n{stderr!r}")
    return {"stdout": stdout or "", "stderr": stderr or "", "exit_code": exit_code}


def _argv(asked: Command) -> list[str]:
    """Return the words as `subprocess.run` would execute them. A given `env` is the whole environment."""
    words = [asked.command] if isinstance(asked.command, str) else asked.command
    if not words:
        raise Raised("builtins.IndexError", "the command has no words")
    if asked.shell:
        words = ["/bin/sh", "-c", *words]
    if asked.env is not None:
        words = ["env", "-i", *(f"{name}={value}" for name, value in asked.env.items()), *words]
    return ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", *words] if asked.merge_output_streams else words


async def read_file(call: Call, trajectory: str) -> dict[str, Any]:
    """Return a file's text."""
    asked = await body(call, _read)
    answered = _done(await act(call, trajectory, "env.read", {"path": asked.path, "encoding": "base64"}))
    return {"content": await asyncio.to_thread(_text, answered.output.get("content", ""), asked)}


def _text(content: str, asked: ReadFile) -> str:
    """Decode a file's content.

    Raises:
        Raised: the encoding does not exist, or the content is not valid in it.
    """
    encoding = asked.encoding or "utf-8"
    try:
        if len(encoding) > _MOST_ENCODING or codecs.lookup(encoding).name in _SLOW:
            raise LookupError(f"unknown encoding: {encoding[:_MOST_ENCODING]}")
        text = io.TextIOWrapper(io.BytesIO(base64.b64decode(content)), encoding, asked.errors).read()
        text.encode()  # fails where encoding the answer would fail
    except UnicodeEncodeError as error:
        raise Raised("builtins.ValueError", f"the text cannot be encoded as JSON: {error}") from error
    except (LookupError, ValueError, TypeError) as error:
        raise Raised(f"builtins.{type(error).__name__}", str(error)) from error
    return text


async def write_file(call: Call, trajectory: str) -> dict[str, Any]:
    """Write a whole file."""
    asked = await body(call, _write)
    _done(await act(call, trajectory, "env.write", {"path": asked.path, "content": asked.content}))
    return {}


async def upload(call: Call, trajectory: str) -> dict[str, Any]:
    """Write an uploaded file, or unpack a directory from a zip archive."""
    most = call.proxy.settings.max_body_bytes
    form = decode_upload(call.header(b"content-type") or "", await call.body(most))
    if form.unzip:
        archive = await asyncio.to_thread(_archive, form.content, most)
        _done(await act(call, trajectory, "env.upload", {"path": form.target_path, "archive": archive}))
    else:
        content = base64.b64encode(form.content).decode()
        params = {"path": form.target_path, "content": content, "encoding": "base64"}
        _done(await act(call, trajectory, "env.write", params))
    return {}


def _archive(content: bytes, most: int) -> str:
    """Convert a zip archive for `env.upload`, in at most the bytes that a body may have."""
    return base64.b64encode(to_tar(content, most // 4 * 3)).decode()


def _done(answered: ActionEnd) -> ActionEnd:
    """Raises:
    Raised: a file operation has failed.
    """
    if answered.ended == "timeout":
        raise swerex_error("CommandTimeoutError", answered.reason)
    if not answered.passed:
        raise os_error(str(answered.output.get("error") or answered.reason))
    return answered
