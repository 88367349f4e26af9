"""Sandbox, toolchain and graders of a node; without a sandbox, the reason for its refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from services.cpu_manager.graders.cuda_compile import find_compiler
from services.cpu_manager.graders.protocol import Grader
from services.cpu_manager.graders.registry import build_graders
from services.cpu_manager.kinds import CORES, PLAIN
from services.cpu_manager.sandbox import languages, toolchain
from services.cpu_manager.sandbox.child_processes import ChildProcesses
from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import Exit, Job, Limits, PythonJob, Sandbox
from services.cpu_manager.sandbox.rungs import NoSandboxError, Rung
from services.cpu_manager.sandbox.spares import ColdStart
from services.cpu_manager.settings import CpuManagerSettings
from shared.runtime import log

_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class SandboxedGraders:
    """The graders of one node, their sandbox, and its labels."""

    sandbox: Sandbox
    graders: Mapping[str, Grader[Any]]
    labels: dict[str, str]
    """For people, in /v1/nodes: the sandbox rung, languages with versions."""
    cold_start: ColdStart = field(default_factory=ColdStart)
    """Measured time until a core has a worker that executes."""
    child_processes: ChildProcesses | None = None
    """Processes that the sandbox has started; None without a sandbox."""

    def cold_start_s(self) -> dict[str, float]:
        """Resource -> seconds from owning a unit to a worker that executes on it; only resources measured so far.

        Owning a core costs nothing by itself. The time is that of starting the cell for the first job on the core.
        """
        seconds = self.cold_start.seconds
        return {} if seconds is None else {CORES: round(seconds, 4)}


class NoSandbox:
    """Sandbox of a node that has none: it runs nothing and returns the reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def run(self, job: Job, cores: frozenset[int]) -> Exit:
        """Return `lost` with the reason."""
        del job, cores
        return Exit(ended_by="lost", detail=self._reason)

    async def close(self) -> None:
        """Does nothing."""


@asynccontextmanager
async def open_graders(settings: CpuManagerSettings, cores: frozenset[int]) -> AsyncIterator[SandboxedGraders]:
    """Find the sandbox and the languages by trying, warm up the first interpreter, and close everything at the end.

    Without a sandbox the node offers only kinds that run no model-written program.
    """
    rung = None if settings.rung == "auto" else Rung(settings.rung)
    try:
        sandbox = await LocalSandbox.create(
            rung=rung, tools=await asyncio.to_thread(toolchain.detect, settings.visible_paths)
        )
    except NoSandboxError as error:
        _log.error("no_sandbox", reason=str(error))
        harmless = {kind: grader for kind, grader in build_graders({}).items() if PLAIN[kind].requirement is None}
        yield SandboxedGraders(NoSandbox(str(error)), harmless, {"sandbox": f"none: {error}"})
        return
    try:
        _log.info("sandbox_ready", ladder=str(sandbox.ladder))
        known = await asyncio.to_thread(languages.languages, sandbox.toolchain)
        labels = {"sandbox": str(sandbox.ladder.chosen), "user": sandbox.ladder.user}
        labels |= {f"language.{name}": info.version for name, info in known.items()}
        cuda = find_compiler(settings.nvcc, settings.cuda_arch)
        if version := await asyncio.to_thread(lambda: cuda.version):
            labels["cuda"] = version
        await _warm(sandbox, cores)
        yield SandboxedGraders(
            sandbox, build_graders(known, cuda=cuda), labels, sandbox.cold_start, sandbox.child_processes
        )
    finally:
        await sandbox.close()


async def _warm(sandbox: LocalSandbox, cores: frozenset[int]) -> None:
    """Run an empty program, so that the default interpreter is imported before the first action."""
    ended = await sandbox.run(PythonJob(source="pass", limits=Limits(wall_s=30.0, cpu_s=30.0)), cores)
    if ended.ended_by != "exit" or ended.exit_code != 0:
        _log.error("sandbox_warm_up_failed", ended_by=ended.ended_by, detail=ended.detail)
