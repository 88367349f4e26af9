"""Sandboxes for tests: one that follows a script, and one that runs harnesses in a bare interpreter, without walls.

The second is for our own test programs only; it shows that a verdict's honesty does not rest on the walls.
"""

from __future__ import annotations

import asyncio
import fcntl
import marshal
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from services.cpu_manager.graders.protocol import GradingContext
from services.cpu_manager.sandbox.languages import LanguageInfo
from services.cpu_manager.sandbox.protocol import Exit, Job, PythonJob, Sandbox


class FakeSandbox:
    """Answers every job by a function and remembers the jobs and their cores."""

    def __init__(self, answer: Callable[[Job], Exit]) -> None:
        self._answer = answer
        self.jobs: list[Job] = []
        self.cores: list[frozenset[int]] = []

    async def run(self, job: Job, cores: frozenset[int]) -> Exit:
        self.jobs.append(job)
        self.cores.append(cores)
        await asyncio.sleep(0)
        return self._answer(job)

    async def close(self) -> None:
        """Nothing is held."""


LANGUAGES: Mapping[str, LanguageInfo] = {
    "python": LanguageInfo("python", "3", "main.py", (), ("python3", "main.py")),
    "cpp": LanguageInfo("cpp", "12", "main.cpp", ("compile", "main.cpp"), ("./main",), "main"),
}
"""A node with one interpreted and one compiled language; a fake distinguishes the jobs by their argv."""


def context(
    sandbox: Sandbox,
    *,
    cores: int = 1,
    timeout_s: float = 60.0,
    tenant: str = "ada",
    error_score: float = 0.0,
    exception_score: float | None = None,
) -> GradingContext:
    return GradingContext(
        sandbox=sandbox,
        cores=frozenset(range(cores)),
        timeout_s=timeout_s,
        tenant=tenant,
        error_score=error_score,
        exception_score=exception_score,
    )


_BOOT = """\
import importlib, marshal, os, resource, sys
name, root, report_fd = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.path.insert(0, root)
class ProgramFile:
    def __init__(self, source, payload):
        self.source, self.payload = source, payload
def interpret(harness, program):
    def send(content):
        os.write(report_fd, content)
    harness(program.source, program.payload, send)
harness = importlib.import_module(f"services.cpu_manager.sandbox.harnesses.{name}").main
program = ProgramFile(*marshal.loads(sys.stdin.buffer.read()))
sys.stdin = open(os.devnull)
interpret(harness, program)
"""


class BareInterpreter:
    """Runs one harness in a fresh interpreter, and kills it with its group at the wall limit."""

    async def run(self, job: Job, cores: frozenset[int]) -> Exit:
        assert isinstance(job, PythonJob)
        read_end, write_end = os.pipe()
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 1 << 20)  # a whole report, since it is read at the end
        with tempfile.TemporaryDirectory() as home:
            started = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _BOOT, job.harness, str(Path.cwd()), str(write_end)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(write_end,),
                cwd=home,
                start_new_session=True,
            )
            os.close(write_end)
            program = marshal.dumps((job.source, job.payload))
            try:
                async with asyncio.timeout(job.limits.wall_s):
                    stdout, stderr = await process.communicate(program)
                ended_by: str = "exit" if (process.returncode or 0) >= 0 else "signal"
            except TimeoutError:
                ended_by, stdout, stderr = "wall-limit", b"", b""
            finally:
                _kill_group(process.pid)
                await process.wait()
        os.set_blocking(read_end, False)
        report = _read_what_is_there(read_end)
        code = process.returncode or 0
        return Exit(
            ended_by="wall-limit" if ended_by == "wall-limit" else ("exit" if code >= 0 else "signal"),
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stdout=stdout,
            stderr=stderr,
            report=report,
            wall_s=time.monotonic() - started,
        )

    async def close(self) -> None:
        """Nothing is held."""


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, 9)
    except ProcessLookupError:
        return


def _read_what_is_there(descriptor: int) -> bytes:
    parts = []
    try:
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)
    return b"".join(parts)
