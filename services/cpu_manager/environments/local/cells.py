"""Start of permanent cells: a slot of the sandbox, a freezer for its group, and a zygote that forks agents."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from dataclasses import dataclass, replace
from typing import Final

from services.cpu_manager.environments.channel import AgentChannel
from services.cpu_manager.environments.local.cell_handle import CellHandle
from services.cpu_manager.environments.local.suspension import FreezerSuspension, SignalSuspension, Suspension
from services.cpu_manager.environments.protocol import RuntimeUnavailable
from services.cpu_manager.sandbox import transport
from services.cpu_manager.sandbox.inside import wire
from services.cpu_manager.sandbox.local import CellResources
from services.cpu_manager.sandbox.rungs import Rung
from services.cpu_manager.sandbox.slots import Slot
from services.cpu_manager.sandbox.usage import pid_of
from services.cpu_manager.sandbox.walls.freezers import Freezer, Freezers, FreezersV1, FreezersV2
from services.cpu_manager.sandbox.zygotes import LAUNCHER, Zygote, ZygoteError, Zygotes
from shared.messages.environments import MODEL_PORT, EnvironmentSpec
from shared.walls.syscalls import signal_pidfd

_AGENT: Final = "services.cpu_manager.environments.agent.serving"
_BEGIN_S: Final = 30.0
_MIB: Final = 1 << 20
_DATA_SLACK: Final = 64 << 20
"""RLIMIT_DATA lies this much above the memory limit if the watchdog enforces that limit."""
_SOCKET_BYTES: Final = 64 << 20
"""Buffers of an environment's TCP sockets, where they are not counted as memory."""
_EXTRA_PIDS: Final = 1
"""The agent itself."""


@dataclass(frozen=True, slots=True)
class StartedCell:
    """A cell whose agent serves, not yet frozen."""

    slot: Slot
    zygote: Zygote
    handle: CellHandle
    agent: AgentChannel
    listener: socket.socket | None
    """Listener at its loopback address, if its specification asks for its model. Close it to let its namespace end."""


class Cells:
    """One manager's permanent cells. Their slots are reused."""

    def __init__(self, resources: CellResources, output_bytes: int) -> None:
        """Raise OSError if control groups cannot be frozen."""
        self._resources = resources
        self._output_bytes = output_bytes
        self._freezers = self._make_freezers()
        self._made: dict[str, tuple[int, Freezer]] = {}
        walls = replace(resources.walls, agent=_AGENT, stopping=self._freezers is None)
        logs = resources.instance.directory / "environments"
        logs.mkdir(mode=0o711)
        self._zygotes = Zygotes(walls, logs, 1, resources.child_processes)

    def _make_freezers(self) -> Freezers | None:
        resources = self._resources
        if resources.hierarchy is None:
            return None
        if resources.ladder.chosen is Rung.CGROUP_V2:
            return FreezersV2()
        freezers = FreezersV1.make_for(resources.instance.name)
        # Freezers first: a sweep must thaw frozen processes before it can remove the other groups.
        resources.instance.record_groups((*freezers.directories, *resources.hierarchy.directories))
        return freezers

    async def start(self, spec: EnvironmentSpec, cores: frozenset[int]) -> StartedCell:
        """Start a cell on these cores. Leaves nothing behind if cancelled or failed. About 10 ms.

        Raises:
            RuntimeUnavailable: it could not be started.
        """
        try:
            zygote = await self._zygotes.get(LAUNCHER)
            slot = self._resources.slots.take()
        except (ZygoteError, OSError) as error:
            raise RuntimeUnavailable(str(error)) from error
        try:
            return await self._start_in(slot, zygote, spec, cores)
        except (ZygoteError, TimeoutError, OSError) as error:
            raise RuntimeUnavailable(f"no cell: {str(error) or 'it did not start'}") from error

    async def _start_in(self, slot: Slot, zygote: Zygote, spec: EnvironmentSpec, cores: frozenset[int]) -> StartedCell:
        pidfd, passed = -1, list[int]()
        ours, theirs = socket.socketpair()
        try:
            control = self._spawn(slot, zygote, spec)
            try:
                packet, descriptors = await transport.receive(control, 1, _BEGIN_S)
                if descriptors:
                    pidfd = descriptors[0]
                    wire.send(control, wire.pack(self._order(spec, cores)), (theirs.fileno(),))
                    packet, passed = await transport.receive(control, 1, _BEGIN_S)
            finally:
                control.close()
                theirs.close()
            if packet != wire.STARTED:
                raise ZygoteError(packet[1:].decode(errors="replace") or "it died at its start")
            agent = AgentChannel(ours, self._output_bytes)
            handle = CellHandle(pidfd, ours, self._suspension(slot, spec, pidfd, agent, cores))
        except BaseException:
            ours.close()
            for descriptor in passed:
                os.close(descriptor)
            self._undo(slot, pidfd)
            raise
        zygote.end_listeners.add(handle.release)
        listener = socket.socket(fileno=passed[0]) if passed else None
        return StartedCell(slot, zygote, handle, agent, listener)

    def _undo(self, slot: Slot, pidfd: int) -> None:
        """End a cell without a handle. It was never frozen, so it dies at once."""
        if pidfd >= 0:
            with contextlib.suppress(OSError):
                signal_pidfd(pidfd, signal.SIGKILL)
            os.close(pidfd)
        self._resources.slots.give(slot)

    def _spawn(self, slot: Slot, zygote: Zygote, spec: EnvironmentSpec) -> socket.socket:
        plan = replace(slot.plan, disk_bytes=spec.disk_mb * _MIB, permanent=True)
        joining: tuple[int, ...] = ()
        if slot.group is not None and self._freezers is not None:
            slot.group.set_limits(spec.memory_mb * _MIB, spec.pids + _EXTRA_PIDS)
            if spec.model:
                slot.group.limit_socket_memory(min(spec.memory_mb * _MIB, _SOCKET_BYTES))
            if slot.group.name not in self._made:
                self._made[slot.group.name] = len(self._made), self._freezers.of(slot.group)
            number, freezer = self._made[slot.group.name]
            freezer.thaw()
            joining = (*slot.group.joining, *freezer.joining)
            if freezer.thawing >= 0:
                plan, joining = replace(plan, thawing=number), (*joining, freezer.thawing)
        return zygote.spawn(plan, joining)

    def _order(self, spec: EnvironmentSpec, cores: frozenset[int]) -> wire.StartRequest:
        grouped = self._freezers is not None
        return wire.StartRequest(
            cores=tuple(cores),
            file_bytes=spec.disk_mb * _MIB,
            data_bytes=0 if grouped else spec.memory_mb * _MIB + _DATA_SLACK,
            cpu_s=0,
            pids=spec.pids,
            counted_pids=0 if grouped else spec.pids,
            listens=MODEL_PORT if spec.model else 0,
        )

    def _suspension(
        self, slot: Slot, spec: EnvironmentSpec, pidfd: int, agent: AgentChannel, cores: frozenset[int]
    ) -> Suspension:
        if slot.group is not None:
            _, freezer = self._made[slot.group.name]
            return FreezerSuspension(freezer, slot.group, cores)
        return SignalSuspension(pid_of(pidfd), agent, spec.memory_mb * _MIB, cores)

    async def end(self, cell: StartedCell) -> None:
        """Wait for the end of a killed cell, and free its slot."""
        gone = await cell.handle.gone()
        cell.zygote.end_listeners.discard(cell.handle.release)
        await cell.handle.close()
        if gone:
            self._resources.slots.give(cell.slot)

    async def close(self) -> None:
        """End the zygote and remove all freezers. Every cell has been killed before."""
        await self._zygotes.close()
        for _, freezer in self._made.values():
            freezer.close()
        if self._freezers is not None:
            await asyncio.to_thread(self._freezers.remove)
