"""Suspension of a local environment's processes between actions, and their cores during one.

A control group freezes them if the node has control groups. Otherwise the agent, which is pid 1, stops them all with
one SIGSTOP. Cores are assigned by affinity, thread by thread, while all are stopped: none can fork meanwhile, and no
program may change its own affinity (`walls/seccomp.py`). Keeping the same cores costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from services.cpu_manager.environments.channel import AgentChannel, Broken
from services.cpu_manager.environments.handles import EnvironmentUsage, Gone
from services.cpu_manager.environments.local.memory import MemoryWatch
from services.cpu_manager.sandbox.usage import TreeSampler, process_tree
from services.cpu_manager.sandbox.walls.cgroups import Group
from services.cpu_manager.sandbox.walls.freezers import Freezer

FREEZE_S: Final = 5.0
"""A process in a slow disk access freezes when the access ends. An environment that takes longer is ended."""
_LOOKS: Final = 3
_PAUSE_S: Final = 0.001
_ANSWER_S: Final = 5.0


class Suspension(Protocol):
    """Suspension of one environment. Never make two calls at once."""

    async def resume(self, cores: frozenset[int]) -> None:
        """Run on exactly these cores; an empty set keeps its cores. Raises `Gone`."""
        ...

    async def pause(self) -> None:
        """Return when no process runs any more. Raise `Gone` if that fails: the environment must be ended."""
        ...

    def usage(self) -> EnvironmentUsage: ...

    def release(self) -> None:
        """Let killed processes die. Safe to call again, also after their end."""
        ...


def confine(threads: Iterable[int], cores: frozenset[int]) -> None:
    """Assign cores to threads. They are stopped, so a missing thread was killed from outside."""
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, cores)


class FreezerSuspension:
    """Freezes by the freezer of its control group, including the agent."""

    def __init__(self, freezer: Freezer, group: Group, cores: frozenset[int]) -> None:
        self._freezer = freezer
        self._group = group
        self._cores = cores
        self._before = EnvironmentUsage()

    async def resume(self, cores: frozenset[int]) -> None:
        try:
            if cores and cores != self._cores:
                confine(self._freezer.threads(), cores)
                self._cores = cores
            self._before = self.usage()
            self._group.reset_counts()
            self._freezer.thaw()
        except OSError as error:
            raise Gone(f"its control group cannot be written: {error}") from error

    async def pause(self) -> None:
        deadline = asyncio.get_running_loop().time() + FREEZE_S
        try:
            self._freezer.freeze()
            looks = 0
            while not self._freezer.frozen():
                if asyncio.get_running_loop().time() > deadline:
                    raise Gone(f"it could not be frozen in {FREEZE_S:g} s")
                looks += 1
                if looks >= _LOOKS:  # sleep, because spinning would use the core that the last process needs
                    await asyncio.sleep(_PAUSE_S)
        except OSError as error:
            raise Gone(f"its control group cannot be written: {error}") from error

    def usage(self) -> EnvironmentUsage:
        return EnvironmentUsage(
            cpu_s=self._before.cpu_s + self._group.cpu_s(),
            peak_memory_bytes=self._group.peak_memory_bytes(),
            memory_kills=self._before.memory_kills + self._group.out_of_memory(),
        )

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._freezer.thaw()


class SignalSuspension:
    """Stops by the agent's SIGSTOP. Memory is watched while they run (docs/sandbox.md, the weaker rungs)."""

    def __init__(self, init: int, agent: AgentChannel, memory_bytes: int, cores: frozenset[int]) -> None:
        self._init = init
        self._agent = agent
        self._cores = cores
        self._tree = TreeSampler(memory_bytes)
        self._memory = MemoryWatch(init, self._tree, memory_bytes)

    async def resume(self, cores: frozenset[int]) -> None:
        if cores and cores != self._cores:
            confine(_threads(self._init), cores)
            self._cores = cores
        self._memory.start()
        await self._ask("go")

    async def pause(self) -> None:
        self._memory.stop()
        await self._ask("stop")

    async def _ask(self, order: str) -> None:
        try:
            succeeded = await self._agent.control(order, _ANSWER_S)
        except Broken as error:
            raise Gone(str(error)) from error
        if not succeeded:
            raise Gone(f"the agent could not do: {order}")

    def usage(self) -> EnvironmentUsage:
        peak, kills = self._memory.peak_bytes, self._memory.kills
        return EnvironmentUsage(self._tree.sample(self._init, quick=True).cpu_s, peak, kills)

    def release(self) -> None:
        """Stop the memory watch. Stopped processes die when they are killed."""
        self._memory.stop()


def _threads(init: int) -> list[int]:
    threads: list[int] = []
    for pid in process_tree(init):
        with contextlib.suppress(OSError):
            threads += [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]
    return threads
