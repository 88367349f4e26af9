"""Start of an engine's guard: a process of its own that outlives the manager (`engine_guard`)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from services.gpu_manager.backends import engine_guard
from shared.runtime.kept_processes import KEEP_VARIABLE
from shared.runtime.units import Seconds

GUARD_START_S: Final[Seconds] = 30.0
"""Limit of the start of a guard. It takes about 40 ms."""
_SERVICE: Final = "TREADLE_SERVICE"


class Handshake(msgspec.Struct):
    """Answer of a guard: the engine's process, or why it was not started."""

    pid: int = 0
    error: str = ""


async def started_guard(task: bytes, mark: dict[str, str]) -> tuple[subprocess.Popen[bytes], Handshake]:
    """Start a guard, and return it with its answer. In a session of its own: it is not signalled with the manager."""
    read, write = os.pipe()
    environ = {KEEP_VARIABLE: "1", **mark}
    if _SERVICE in os.environ:
        environ[_SERVICE] = os.environ[_SERVICE]
    try:
        child = subprocess.Popen(  # noqa: ASYNC220  # a fork of a millisecond
            [sys.executable, "-I", "-S", str(Path(engine_guard.__file__)), str(write)],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(write,),
            cwd="/",
        )
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    try:
        assert child.stdin is not None
        await asyncio.to_thread(_send, child, task)
        async with asyncio.timeout(GUARD_START_S):
            raw = await _read_all(read)
    except TimeoutError:
        child.kill()
        raise OSError(f"it did not start in {GUARD_START_S:g} s") from None
    finally:
        os.close(read)
    return child, msgspec.json.decode(raw, type=Handshake) if raw else Handshake()


def _send(child: subprocess.Popen[bytes], task: bytes) -> None:
    assert child.stdin is not None
    with suppress(BrokenPipeError), child.stdin as pipe:
        pipe.write(task)


async def _read_all(descriptor: int) -> bytes:
    """Read a pipe until its end."""
    loop, data = asyncio.get_running_loop(), bytearray()
    os.set_blocking(descriptor, False)
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        while True:
            await ready.wait()
            ready.clear()
            with suppress(BlockingIOError):
                part = os.read(descriptor, 1 << 16)
                if not part:
                    return bytes(data)
                data += part
    finally:
        loop.remove_reader(descriptor)
