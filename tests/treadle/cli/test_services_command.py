"""The table of GPUs of ``treadle services``."""

from __future__ import annotations

from rich.console import Console

from treadle.cli.services import _overview
from treadle.client.answers import GpuView, ModelServiceList


def gpu(number: int, ownership: str = "", why: str = "") -> GpuView:
    return GpuView(node="gpu-1", number=number, name="H100", memory_gb=80.0, ownership=ownership, why=why)


def shown(*gpus: GpuView) -> list[str]:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(_overview(ModelServiceList(services=[], gpus=list(gpus))))
    return [" ".join(line.split()) for line in captured.get().splitlines() if "gpu-1" in line]


def test_gpus_with_hooks_and_faulty_ones_are_shown() -> None:
    assert shown(gpu(0), gpu(1, why="NVML: GPU is lost")) == ["gpu-1 1 H100 NVML: GPU is lost"]
    assert shown(gpu(0, "held"), gpu(1)) == ["gpu-1 0 held H100"]
    assert shown(gpu(0), gpu(1)) == []
