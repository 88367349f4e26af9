"""Devices of a node: by NVML, described, or none; and the memory of real processes on described ones."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psutil
import pytest

from services.gpu_manager.described_memory import DescribedMemory
from services.gpu_manager.devices import GIB, GpuDevice, WrongDevices, find_devices, read_described

TWO = '[{"memory_gb": 24}, {"memory_gb": 0.5, "name": "small"}]'


def test_described_devices() -> None:
    assert read_described(TWO) == (
        GpuDevice(0, 24.0, "described", False),
        GpuDevice(1, 0.5, "small", False),
    )  # fmt: skip
    assert read_described("") == read_described(" \n") == read_described("[]") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("24", "must be a list, not a whole number"),
        ("[24]", "[0]: must be an object, not a whole number"),
        ("[{}]", "[0]: missing field `memory_gb`"),
        ('[{"memory_gb": 0}]', "[0].memory_gb: must be greater than 0"),
        ('[{"memory_gb": "24"}]', "[0].memory_gb: must be a number, not text"),
        ('[{"memory_gb": 24, "gpu": 1}]', "[0]: unknown field `gpu`; the fields are `memory_gb`, `name`"),
        ("[" + ",".join(['{"memory_gb": 1}'] * 65) + "]", "must have at most 64 items"),
        ("two", "it is not valid JSON"),
        ('[{"memory_gb": NaN}]', "it is not valid JSON"),
        ("[" * 100_000, "[0]: must be an object, not a list"),
    ],
    ids=range(10),
)
def test_a_wrong_description_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(WrongDevices) as error:
        find_devices(text)
    assert str(error.value) == f'GPU_MANAGER_DEVICES: {message}; write [{{"memory_gb": 24}}, {{"memory_gb": 24}}]'


# ---- NVML ------------------------------------------------------------------------------------------------------------


class _NvmlError(Exception):
    """Error of NVML's binding."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class _Nvml(types.ModuleType):
    """Module that answers as NVML's binding does."""

    def __init__(self, *total_gb: float, error: str = "", name: Any = "NVIDIA H100") -> None:
        super().__init__("written_nvml")
        self.total_gb, self.error, self.name = total_gb, error, name
        self.open = 0
        self.used: int | None = 3 * GIB
        self.processes: list[tuple[int, int | None]] = []
        self.NVML_ERROR_GPU_IS_LOST, self.NVML_ERROR_RESET_REQUIRED = 15, 16
        self.fails: dict[int, int] = {}
        """GPU -> code of NVML's error."""
        self.remapped: dict[int, bool] = {}
        """GPU -> whether rows of its memory could not be remapped."""

    def nvmlInit(self) -> None:  # noqa: N802
        if self.error:
            raise RuntimeError(self.error)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.total_gb)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int) -> Any:  # noqa: N802
        if self.name is None:
            raise RuntimeError("GPU is lost")
        return self.name

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        if self.used is None:
            raise RuntimeError("GPU is lost")
        if handle in self.fails:
            raise _NvmlError(self.fails[handle])
        return types.SimpleNamespace(total=int(self.total_gb[handle] * GIB), used=self.used + handle)

    def nvmlDeviceGetRemappedRows(self, handle: int) -> list[int]:  # noqa: N802
        if handle not in self.remapped:
            raise _NvmlError(3)  # not supported
        return [1, 0, 0, int(self.remapped[handle])]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[_Nvml], _Nvml]:
    def put(module: _Nvml) -> _Nvml:
        monkeypatch.setitem(sys.modules, "written_nvml", module)
        return module

    return put


Install = Callable[[_Nvml], _Nvml]


def test_real_devices_come_before_described_ones(install: Install) -> None:
    nvml = install(_Nvml(80, 80, name=b"NVIDIA H100"))

    found = find_devices(TWO, nvml="written_nvml")

    assert found.devices == (GpuDevice(0, 80.0, "NVIDIA H100", True), GpuDevice(1, 80.0, "NVIDIA H100", True))
    assert found.reason == "2 GPUs by NVML; GPU_MANAGER_DEVICES is ignored"
    assert [found.memory.used_bytes(number) for number in (0, 1)] == [3 * GIB, 3 * GIB + 1]
    nvml.used = None
    assert found.memory.used_bytes(0) is None, "a GPU that is lost has no measured memory"
    assert found.memory.used_bytes(7) is None
    found.memory.close()
    assert nvml.open == 0


def test_a_gpu_is_faulty_only_if_nvml_reports_a_fault(install: Install) -> None:
    nvml = install(_Nvml(*[80] * 6))
    memory = find_devices(nvml="written_nvml").memory
    nvml.fails = {1: 15, 2: 16, 3: 999}
    nvml.remapped = {4: True, 5: False}
    lost, broken = "NVML: error 15", "NVML: rows of its memory could not be remapped"
    assert [memory.fault(number) for number in range(6)] == ["", lost, "NVML: error 16", "", broken, ""]
    nvml.fails = {}
    assert memory.fault(1) == "", "it answers again"
    assert DescribedMemory((GpuDevice(0, 24.0, "described", False),)).fault(0) == ""


def test_the_memory_of_processes_on_real_devices(install: Install) -> None:
    nvml = install(_Nvml(80, 80))
    memory = find_devices(nvml="written_nvml").memory
    nvml.processes = [(10, 5), (11, 7), (12, 100)]

    assert memory.bytes_of([0, 1], [10, 11]) == 24
    assert memory.bytes_of([0], []) == 0
    assert memory.bytes_of([0], [99]) is None, "a container does not see the host's process ids"
    nvml.processes = [(10, None)]
    assert memory.bytes_of([0], [10]) is None


@pytest.mark.parametrize(
    ("nvml", "reason"),
    [
        (_Nvml(error="Driver Not Loaded"), "no GPU: NVML cannot be used (Driver Not Loaded)"),
        (_Nvml(80, name=None), "no GPU: NVML cannot be used (GPU is lost)"),
        (_Nvml(), "no GPU: NVML has none"),
    ],
)
def test_without_a_gpu_the_described_devices_count(install: Install, nvml: _Nvml, reason: str) -> None:
    install(nvml)

    assert [device.memory_gb for device in find_devices(TWO, nvml="written_nvml").devices] == [24.0, 0.5]
    assert find_devices(TWO, nvml="written_nvml").reason == f"{reason}; 2 described by GPU_MANAGER_DEVICES"
    assert find_devices("", nvml="written_nvml").devices == ()
    assert find_devices("", nvml="written_nvml").reason == reason
    assert nvml.open == 0


def test_without_the_package_there_is_no_gpu() -> None:
    found = find_devices(nvml="no_such_module_of_nvml")
    assert (found.devices, found.reason) == ((), "no GPU: the package nvidia-ml-py is not installed")


# ---- memory of described devices -------------------------------------------------------------------------------------

MIB = 1 << 20
HOLD = "import time; held = bytearray(b'x') * {size}; print('held', flush=True); time.sleep(600)"
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def started(code: str, stack: ExitStack) -> subprocess.Popen[str]:
    """Start a program in a process group of its own, and end the group after the test."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, process_group=0)
    stack.callback(ended, process)
    return process


def ended(process: subprocess.Popen[str]) -> None:
    for member in psutil.process_iter():
        try:
            if os.getpgid(member.pid) == process.pid:
                member.kill()
        except (OSError, psutil.Error):
            continue
    process.wait(30)
    assert process.stdout is not None
    process.stdout.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def used_mib(memory: DescribedMemory, number: int) -> float:
    found = memory.used_bytes(number)
    assert found is not None
    return found / MIB


def test_a_process_counts_on_the_device_that_it_is_assigned_to(stack: ExitStack) -> None:
    memory = DescribedMemory(read_described(TWO))
    process = started(HOLD.format(size=100 * MIB), stack)
    assert line(process) == "held"

    assert (memory.used_bytes(0), memory.used_bytes(1)) == (0, 0)
    memory.assign(process.pid, [1])
    assert 100 <= used_mib(memory, 1) < 160
    assert memory.used_bytes(0) == 0
    found = memory.bytes_of([1], [process.pid])
    assert found is not None
    assert 100 <= found / MIB < 160

    memory.release(process.pid)
    memory.release(process.pid)
    assert memory.used_bytes(1) == 0


def test_a_process_on_two_devices_counts_half_on_each(stack: ExitStack) -> None:
    memory = DescribedMemory(read_described(TWO))
    process = started(HOLD.format(size=100 * MIB), stack)
    line(process)
    memory.assign(process.pid, [0, 1])
    assert 50 <= used_mib(memory, 0) < 80
    assert 50 <= used_mib(memory, 1) < 80


def test_children_count_also_after_their_parent_was_killed(stack: ExitStack) -> None:
    """An engine's worker that outlives its server still has its memory."""
    memory = DescribedMemory(read_described(TWO))
    process = started(PARENT.format(child=HOLD.format(size=100 * MIB)), stack)
    child = int(line(process))
    memory.assign(process.pid, [0])

    assert 100 <= used_mib(memory, 0) < 200
    process.kill()
    process.wait(30)
    assert 100 <= used_mib(memory, 0) < 160, "the child is in the group of its dead parent"
    orphan = psutil.Process(child)
    orphan.kill()
    psutil.wait_procs([orphan], 30)
    assert used_mib(memory, 0) < 1


def test_another_process_with_the_same_id_does_not_count(stack: ExitStack) -> None:
    process = started(HOLD.format(size=100 * MIB), stack)
    line(process)
    memory = DescribedMemory(read_described(TWO))
    memory.assign(process.pid, [0])
    memory._assigned[process.pid].began = 1.0  # the id was another process's at that time
    assert memory.used_bytes(0) == 0


def test_processes_that_have_ended_use_nothing(stack: ExitStack) -> None:
    process = started("pass", stack)
    process.wait(30)
    memory = DescribedMemory(read_described(TWO))
    memory.assign(process.pid, [0])
    assert (memory.used_bytes(0), memory.bytes_of([0], [process.pid])) == (0, 0)


@pytest.mark.parametrize("numbers", [[], [2], [0, 2], [-1]])
def test_a_process_is_assigned_to_devices_that_exist(numbers: list[int]) -> None:
    with pytest.raises(ValueError, match="there is no device for each of"):
        DescribedMemory(read_described(TWO)).assign(1, numbers)
