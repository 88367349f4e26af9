"""`LocalSandbox`: walls from this host's kernel, without a container engine."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from services.cpu_manager.sandbox import harnesses, toolchain
from services.cpu_manager.sandbox.child_processes import ChildProcesses
from services.cpu_manager.sandbox.inside import wire
from services.cpu_manager.sandbox.instance import Instance, default_scratch
from services.cpu_manager.sandbox.job_run import JobRun
from services.cpu_manager.sandbox.ladder import choose_rung, make_hierarchy, tools_for, wall_plan
from services.cpu_manager.sandbox.protocol import ExecJob, Exit, Job, PythonJob, names_a_file
from services.cpu_manager.sandbox.rungs import Ladder, Rung
from services.cpu_manager.sandbox.slots import Slots
from services.cpu_manager.sandbox.spares import ColdStart, Spare, Spares
from services.cpu_manager.sandbox.toolchain import Toolchain
from services.cpu_manager.sandbox.transport import sealed_file
from services.cpu_manager.sandbox.usage import GroupSampler, TreeSampler, UsageSampler
from services.cpu_manager.sandbox.walls.cgroups import Hierarchy
from services.cpu_manager.sandbox.zygotes import LAUNCHER, Zygote, ZygoteError, Zygotes, zygote_for

_MOST_ZYGOTES: Final = 8
_TRIES: Final = 2
"""Tries for a job whose program never began, because its zygote or its cell died first. The second try gets a new cell;
after it the job is lost."""
_OTHER_PROCESSES: Final = 4096
"""Processes that may begin elsewhere while a program runs, which the kernel counts with the program's."""
_EXTRA_PIDS: Final = 1
"""The cell's init counts in its control group too."""
_DATA_SLACK: Final = 64 << 20
"""RLIMIT_DATA lies this much above the memory limit. The watchdog reports a breach; the kernel stops sudden jumps."""


@dataclass(frozen=True, slots=True)
class CellResources:
    """Resources that all cells of one manager share."""

    ladder: Ladder
    instance: Instance
    walls: wire.WallPlan
    hierarchy: Hierarchy | None
    slots: Slots
    child_processes: ChildProcesses


class LocalSandbox:
    """Sandbox of cells on this host. One instance per manager process; call all methods on its event loop."""

    def __init__(
        self, ladder: Ladder, tools: Toolchain, instance: Instance, walls: wire.WallPlan, most_zygotes: int
    ) -> None:
        self.ladder = ladder
        self.toolchain = tools
        self._instance = instance
        self._walls = walls
        self._hierarchy = make_hierarchy(ladder.chosen, instance)
        self._slots = Slots(walls, instance.directory, self._hierarchy)
        self._spares = Spares(self._slots)
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._closed = False
        self.child_processes = ChildProcesses()
        self._zygotes = Zygotes(walls, instance.directory, most_zygotes, self.child_processes)
        self.cold_start = ColdStart()
        """Time to start a cell, and its zygote if that did not run either: from the arrival of a job to the start of
        its program. Measured for jobs that found no waiting cell."""

    @property
    def cell_resources(self) -> CellResources:
        """Resources for permanent cells as well: they share users, groups and directories with the other cells."""
        return CellResources(
            self.ladder, self._instance, self._walls, self._hierarchy, self._slots, self.child_processes
        )

    @classmethod
    async def create(
        cls,
        *,
        rung: Rung | None = None,
        scratch: Path | None = None,
        tools: Toolchain | None = None,
        most_zygotes: int = _MOST_ZYGOTES,
    ) -> LocalSandbox:
        """Find the best rung by trying (or use only `rung`), and remove what dead managers left.

        Raises `NoSandboxError` if no rung works. Takes about 100 ms a rung tried; zygotes start at their first use.
        """
        found = await asyncio.to_thread(toolchain.detect) if tools is None else tools
        instance = Instance(scratch or default_scratch())
        try:
            ladder = await choose_rung(instance, found, rung)
            found = tools_for(ladder.chosen, found)
            walls = wall_plan(ladder.chosen, found, instance, available_harnesses())
            return cls(ladder, found, instance, walls, most_zygotes)
        except BaseException:
            instance.close()
            raise

    async def run(self, job: Job, cores: frozenset[int]) -> Exit:
        """Run one job on exactly these cores and wait for its end (see `Sandbox.run`).

        Raises ValueError for a malformed job: a file name that leaves the private directory, files larger than it, an
        unknown harness, no cores, NUL bytes in arguments.
        """
        self._check(job, cores)
        for tried in range(_TRIES):
            ended, started = await self._try_once(job, cores, new=tried > 0)
            if ended.ended_by != "lost" or started:
                break
        return ended

    async def _try_once(self, job: Job, cores: frozenset[int], *, new: bool) -> tuple[Exit, bool]:
        """Try once. Return how it ended, and whether the program may have run."""
        if self._closed:
            return Exit(ended_by="lost", detail="the sandbox is closed"), True
        arrived_at = time.monotonic()
        try:
            zygote = await self._zygotes.get(zygote_for(job) if isinstance(job, PythonJob) else LAUNCHER)
            spare = self._spares.take(zygote, job.limits.disk_bytes, new=new)
        except (ZygoteError, OSError) as error:
            return Exit(ended_by="lost", detail=str(error)), False
        zygote.cells += 1
        zygote.most_cells = max(zygote.most_cells, zygote.cells)
        reusable = False
        try:
            ended, started_at, reusable = await self._attempt(job, cores, spare)
        except OSError as error:
            return Exit(ended_by="lost", detail=str(error)), False
        else:
            if started_at and not spare.prepared:
                self.cold_start.measured(started_at - arrived_at)
            return ended, started_at > 0
        finally:
            zygote.cells -= 1
            if reusable and not self._closed:
                self._spares.give(zygote, job.limits.disk_bytes, spare)
            else:
                self._spares.discard(spare)
            # Later, so that the result is returned first.
            asyncio.get_running_loop().call_soon(self._refill, zygote, job.limits.disk_bytes)

    def _refill(self, zygote: Zygote, disk_bytes: int) -> None:
        if not self._closed:
            with contextlib.suppress(ZygoteError, OSError):  # the next job that needs a cell reports the error
                self._spares.refill(zygote, disk_bytes)

    async def _attempt(self, job: Job, cores: frozenset[int], spare: Spare) -> tuple[Exit, float, bool]:
        """Return how it ended, when the program began (0: not at all), and whether the cell can be used again."""
        limits, slot = job.limits, spare.slot
        if slot.group:
            slot.group.set_limits(limits.memory_bytes, limits.pids + _EXTRA_PIDS)
        descriptors = [sealed_file("program", wire.pack(_program(job)))]
        try:
            descriptors.append(sealed_file("stdin", job.stdin) if job.stdin else os.dup(self._null))
            program_file, stdin = descriptors
            enough = job.enough if isinstance(job, PythonJob) else None
            run = JobRun(spare, limits, self._sampler(spare, job), len(cores), enough)
            requests = self._start_request(job, cores), wire.pack(wire.FetchRequest(job.fetch, limits.disk_bytes))
            ended = await run.run(requests, stdin, program_file, reports=isinstance(job, PythonJob))
            return ended, run.started_at, run.reusable
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _sampler(self, spare: Spare, job: Job) -> UsageSampler:
        slot = spare.slot
        if slot.group:
            return GroupSampler(slot.group)
        home = "" if self._walls.namespaces else slot.plan.home
        limits = job.limits
        return TreeSampler(limits.memory_bytes, home, limits.disk_bytes, limits.pids, spare.earlier_cpu_s)

    def _start_request(self, job: Job, cores: frozenset[int]) -> bytes:
        limits, grouped = job.limits, self._hierarchy is not None
        return wire.pack(
            wire.StartRequest(
                cores=tuple(cores),
                file_bytes=limits.disk_bytes,
                data_bytes=0 if grouped else limits.memory_bytes + _DATA_SLACK,
                cpu_s=math.ceil(limits.cpu_s),
                pids=limits.pids,
                counted_pids=0 if grouped else limits.pids + self._shared_processes(),
            )
        )

    def _shared_processes(self) -> int:
        """Return the number of processes that RLIMIT_NPROC counts beside the cell's own.

        In namespaces, and for a slot's own user, it is 0. An ordinary user's Landlock cells share one count with all
        processes of that user. There init counts (`inside/tasks`), and this limit is a second wall.
        """
        if self._walls.namespaces or self._walls.privileged:
            return 0
        running = Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[2]
        return int(running) + _OTHER_PROCESSES

    def _check(self, job: Job, cores: frozenset[int]) -> None:
        if not cores:
            raise ValueError("a job needs at least one core")
        if isinstance(job, PythonJob) and job.harness not in self._walls.harnesses:
            raise ValueError(f"no harness {job.harness!r}; there are: {', '.join(self._walls.harnesses)}")
        if isinstance(job, ExecJob) and (not job.argv or any("\0" in word for word in job.argv)):
            raise ValueError("argv must name a program and hold no NUL bytes")
        for name in (*job.files, *job.fetch):
            if not names_a_file(name):
                raise ValueError(f"{name[:100]!r} does not name a file inside the private directory")
        paths = {PurePosixPath(name) for name in job.files}
        if len(paths) < len(job.files) or any(parent in paths for path in paths for parent in path.parents):
            raise ValueError("two of the files have the same path, or one lies inside the other")
        if sum(map(len, job.files.values())) > job.limits.disk_bytes:
            raise ValueError(f"the files are larger than the private directory ({job.limits.disk_bytes} bytes)")

    def zygotes(self) -> dict[str, int]:
        """Return names and process ids of the running zygotes."""
        return self._zygotes.pids()

    def spares(self) -> int:
        """Return how many cells wait for a job."""
        return self._spares.count()

    async def close(self) -> None:
        """Kill running programs and remove all files and groups."""
        if self._closed:
            return
        self._closed = True
        self._slots.stop_reuse()
        self._spares.close()
        await self._zygotes.close()
        await asyncio.to_thread(self._slots.close)  # removing control groups may wait for the last of their dead
        os.close(self._null)
        self._instance.close()


def _program(job: Job) -> wire.PythonProgram | wire.ExecProgram:
    if isinstance(job, PythonJob):
        return wire.PythonProgram(job.harness, job.source, job.payload, job.argv, job.files)
    return wire.ExecProgram(job.argv, job.env, job.files, job.executable)


def available_harnesses() -> tuple[str, ...]:
    """Return the names of the harnesses: the modules of that package that define `main` (others support them)."""
    directory = Path(harnesses.__file__).parent
    found = (path.stem for path in directory.glob("*.py") if "\ndef main(" in path.read_text(encoding="utf-8"))
    return tuple(sorted(found))
