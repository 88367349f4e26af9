"""Hooks of the operator: a command or webhook that is called when GPUs are given away, and before they are used again.

A command gets the call as JSON on its standard input, and as `TREADLE_EVENT`, `TREADLE_NODE` and `TREADLE_GPUS`
(`0,1`). A webhook gets the same JSON by POST. Exit status 0, or a status of 2xx, is success. Each call ends within its
time limit; then the process group of a command is killed. A command that has ended may leave children. A hook may be
called again for GPUs that are in that state already.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Final, Literal

import msgspec

from shared.runtime.http import HttpClient, HttpFailure, HttpLimits, HttpRequest
from shared.runtime.units import Seconds

HookEvent = Literal["release", "acquire"]

SHOWN_BYTES: Final = 300
"""Last bytes of a failed command's output that are shown."""
MOST_BYTES: Final = 64 << 10
"""Most bytes of a webhook's answer."""
_argv = msgspec.json.Decoder(list[str])


class HookFailed(Exception):
    """A hook has not confirmed its event. The text says why."""


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook. `target` is the argv of a command, or the URL of a webhook; an empty one always succeeds."""

    target: tuple[str, ...] | str
    limit_s: Seconds

    async def call(self, http: HttpClient, event: HookEvent, node: str, gpus: Sequence[int]) -> None:
        """Call the hook.

        Raises:
            HookFailed: it fails, or does not end in time.
        """
        body = msgspec.json.encode({"node": node, "gpus": list(gpus), "event": event})
        if isinstance(self.target, str):
            if self.target:
                await self._post(http, body)
            return
        environ = {"TREADLE_EVENT": event, "TREADLE_NODE": node, "TREADLE_GPUS": ",".join(map(str, gpus))}
        await self._execute(self.target, body, environ)

    async def _post(self, http: HttpClient, body: bytes) -> None:
        assert isinstance(self.target, str)
        request = HttpRequest("POST", self.target, [("content-type", "application/json")], body)
        reply = await http.exchange(request, HttpLimits(self.limit_s, self.limit_s, MOST_BYTES))
        if isinstance(reply, HttpFailure):
            raise HookFailed(reply.reason)
        if not 200 <= reply.status < 300:
            raise HookFailed(f"the webhook answered {reply.status}")

    async def _execute(self, argv: tuple[str, ...], body: bytes, environ: dict[str, str]) -> None:
        with TemporaryFile() as given, TemporaryFile() as output:  # pipes would last as long as a child of the command
            given.write(body)
            given.seek(0)
            try:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=given,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **environ},
                    start_new_session=True,
                )
            except OSError as error:
                raise HookFailed(f"the command {argv[0]!r} cannot be started: {error.strerror}") from error
            try:
                async with asyncio.timeout(self.limit_s):
                    status = await process.wait()
            except TimeoutError as error:
                raise HookFailed(f"the command did not end within {self.limit_s:g} s") from error
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
            if status:
                raise HookFailed(f"the command ended with status {status}: {_end_of(output) or 'no output'}")


def _end_of(output: IO[bytes]) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - SHOWN_BYTES))
    return output.read().decode(errors="replace").strip()


def hook_of(setting: str, limit_s: Seconds) -> Hook:
    """Return the hook of a setting.

    Raises:
        ValueError: it is neither empty, a URL, nor a JSON list of strings.
    """
    if not setting or setting.startswith(("http://", "https://")):
        return Hook(setting, limit_s)
    try:
        argv = _argv.decode(setting)
    except msgspec.MsgspecError as error:
        raise ValueError('write a URL, or a JSON list of a command: ["/usr/local/bin/release-gpus"]') from error
    if not argv or not argv[0]:
        raise ValueError('write a command: ["/usr/local/bin/release-gpus"]')
    return Hook(tuple(argv), limit_s)
