"""Measured memory and CPU time of the processes of an engine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from services.gpu_manager.backends.engine_process import EngineProcess
from services.gpu_manager.backends.launching import EngineLaunch
from services.gpu_manager.backends.protocol import Footprint
from services.gpu_manager.devices import DeviceMemory


def footprint_of(process: EngineProcess, launch: EngineLaunch, memory: DeviceMemory | None) -> Footprint:
    """Measure the memory and the CPU time of an engine. Reads /proc and the devices: blocks for 10 to 20 ms."""
    pids = process.processes()
    device_bytes = memory.bytes_of(launch.devices, pids) if memory is not None else None
    return Footprint(device_bytes, sum(map(_host_bytes, pids)), sum(map(_cpu_s, pids)))


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process so far; 0 if it has ended."""
    with suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


def _host_bytes(pid: int) -> int:
    """Return the share of host memory of a process (its Pss), in bytes; 0 if it has ended."""
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0
