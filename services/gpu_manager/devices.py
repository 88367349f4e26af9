"""GPUs of a node, and the memory in use on each.

NVML describes real GPUs. Without any, `GPU_MANAGER_DEVICES` describes a node: `[{"memory_gb": 24}, ...]`. The memory of
a described device is the resident memory (RSS) of the processes that are assigned to it, so that a budget is enforced
on real models without a GPU.

GB are 2^30 bytes. Numbers are NVML's, in the order of the PCI bus: CUDA has the same order if CUDA_DEVICE_ORDER is
PCI_BUS_ID.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol

import msgspec

from services.gpu_manager.described_memory import DescribedMemory
from shared.runtime.settings import WrongSetting
from shared.runtime.validation import UNREADABLE, explain

SETTING: Final = "GPU_MANAGER_DEVICES"
GIB: Final = 1 << 30
MOST_DEVICES: Final = 64
_FATAL: Final = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED")
"""Errors of NVML after which a GPU executes nothing."""


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One GPU, real or described."""

    number: int
    memory_gb: float
    name: str
    measured: bool
    """NVML measures its memory. False: it is described, and its memory is that of the processes assigned to it."""
    minor: int | None = None
    """Number of its device file; None: unknown, or none."""
    uuid: str = ""


class WrongDevices(WrongSetting):
    """The described devices cannot be read. The message says what to write."""


class _Described(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    memory_gb: Annotated[float, msgspec.Meta(gt=0, le=1 << 16)]
    name: Annotated[str, msgspec.Meta(max_length=128)] = "described"


_Devices = Annotated[list[_Described], msgspec.Meta(max_length=MOST_DEVICES)]


class DeviceMemory(Protocol):
    """Source of devices and of their memory. Its methods block: NVML for about 1 ms, /proc for about 10 ms."""

    @property
    def devices(self) -> tuple[GpuDevice, ...]:
        """All devices, by number."""
        ...

    def used_bytes(self, number: int) -> int | None:
        """Return the bytes in use on a device; None if they cannot be measured now."""
        ...

    def bytes_of(self, numbers: Iterable[int], processes: Iterable[int]) -> int | None:
        """Return the bytes that these processes use on these devices together; None if they cannot be measured."""
        ...

    def fault(self, number: int) -> str:
        """Return why a device cannot be used; empty: no fault is known."""
        ...

    def assign(self, process: int, numbers: Iterable[int]) -> None:
        """Assign a process, and all that it starts, to devices."""
        ...

    def release(self, process: int) -> None:
        """End the assignment of a process. Safe to call again."""
        ...

    def close(self) -> None:
        """Release the source."""
        ...


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """Devices of a node."""

    memory: DeviceMemory
    reason: str
    """Why it has these, for people: `no NVML (...); described by GPU_MANAGER_DEVICES`."""

    @property
    def devices(self) -> tuple[GpuDevice, ...]:
        return self.memory.devices


def find_devices(described: str = "", *, nvml: str = "pynvml") -> NodeDevices:
    """Return the devices of this node: those of NVML, or the described ones, or none.

    Args:
        described: value of `GPU_MANAGER_DEVICES`; empty: none.
        nvml: module of NVML's Python binding (package nvidia-ml-py).

    Raises:
        WrongDevices: `described` cannot be read. It is read also if NVML has devices, so that an error is seen.
    """
    devices = read_described(described)
    try:
        measured = NvmlMemory(importlib.import_module(nvml))
    except Exception as error:  # noqa: BLE001  # a missing library, driver or right: each means no GPU
        why = "no GPU: " + _reason(error)
    else:
        if measured.devices:
            ignored = f"; {SETTING} is ignored" if devices else ""
            return NodeDevices(measured, f"{len(measured.devices)} GPUs by NVML{ignored}")
        measured.close()
        why = "no GPU: NVML has none"
    if devices:
        why += f"; {len(devices)} described by {SETTING}"
    return NodeDevices(DescribedMemory(devices), why)


def _reason(error: Exception) -> str:
    if isinstance(error, ImportError):
        return "the package nvidia-ml-py is not installed"
    return f"NVML cannot be used ({' '.join(str(error).split())[:200] or type(error).__name__})"


def read_described(text: str) -> tuple[GpuDevice, ...]:
    """Return the devices of a description; none of an empty one.

    Raises:
        WrongDevices: it cannot be read.
    """
    if not text.strip():
        return ()
    wrong = "it is not valid JSON"
    try:
        found = msgspec.json.decode(text, type=_Devices)
    except UNREADABLE as error:
        if isinstance(error, msgspec.ValidationError):
            wrong = explain(error, _Devices)
    else:
        return tuple(GpuDevice(number, one.memory_gb, one.name, False) for number, one in enumerate(found))
    raise WrongDevices(f'{SETTING}: {wrong}; write [{{"memory_gb": 24}}, {{"memory_gb": 24}}]')


class NvmlMemory:
    """Memory of real GPUs. NVML counts everything on a GPU, also what is not ours."""

    def __init__(self, nvml: Any) -> None:
        """Open NVML. Raises the errors of its binding."""
        self._nvml = nvml
        nvml.nvmlInit()
        try:
            self._handles = [nvml.nvmlDeviceGetHandleByIndex(each) for each in range(nvml.nvmlDeviceGetCount())]
            self.devices: tuple[GpuDevice, ...] = tuple(map(self._device, range(len(self._handles))))
        except BaseException:
            nvml.nvmlShutdown()
            raise

    def _device(self, number: int) -> GpuDevice:
        handle, minor, uuid = self._handles[number], None, ""
        name = self._nvml.nvmlDeviceGetName(handle)
        total = self._nvml.nvmlDeviceGetMemoryInfo(handle).total
        with suppress(Exception):
            minor, uuid = int(self._nvml.nvmlDeviceGetMinorNumber(handle)), _text(self._nvml.nvmlDeviceGetUUID(handle))
        return GpuDevice(number, total / GIB, _text(name), True, minor, uuid)

    def used_bytes(self, number: int) -> int | None:
        """Return the bytes in use on a GPU, the driver's included."""
        with suppress(Exception):
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handles[number]).used)
        return None

    def bytes_of(self, numbers: Iterable[int], processes: Iterable[int]) -> int | None:
        """Return the bytes of processes. None also in a container that does not see the host's process ids."""
        wanted, total = set(processes), 0
        with suppress(Exception):
            for number in numbers:
                for found in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handles[number]):
                    if found.pid in wanted:
                        if found.usedGpuMemory is None:
                            return None
                        total += int(found.usedGpuMemory)
            return total if total or not wanted else None
        return None

    def fault(self, number: int) -> str:
        """Return NVML's reason why a GPU cannot be used: it is lost, it needs a reset, or its memory is broken."""
        try:
            self._nvml.nvmlDeviceGetMemoryInfo(self._handles[number])
        except Exception as error:  # noqa: BLE001  # NVML's own class, which is found at run time
            fatal = {getattr(self._nvml, name, None) for name in _FATAL} - {None}
            return f"NVML: {error}" if getattr(error, "value", None) in fatal else ""
        with suppress(Exception):  # GPUs before Ampere do not remap rows
            if self._nvml.nvmlDeviceGetRemappedRows(self._handles[number])[3]:
                return "NVML: rows of its memory could not be remapped"
        return ""

    def assign(self, process: int, numbers: Iterable[int]) -> None:
        """Do nothing: NVML knows the processes of a GPU."""

    def release(self, process: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Close NVML."""
        with suppress(Exception):
            self._nvml.nvmlShutdown()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
