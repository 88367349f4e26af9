"""Device files and libraries of one GPU, for a process behind walls."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Final

from services.gpu_manager.kernels.attempt import GpuAccess

_VISIBLE: Final = ("/usr/", "/lib")
"""Directories that the view has in any case."""
_NUMBERED: Final = re.compile(r"nvidia[0-9]+")


def access_of(library: str, minor: int | None, uuid: str) -> GpuAccess:
    """Return how a process uses one GPU.

    Args:
        library: of CUDA's driver.
        minor: number of the GPU's device file; None: unknown, so all files are passed.
        uuid: of the GPU, as NVML reports it; empty: unknown. The process uses the first GPU that it sees.

    Raises:
        OSError: this machine has no such library, or no device file.
    """
    ctypes.CDLL(library)
    loaded = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libcuda" in line]
    shown = sorted({str(Path(path).parent) for path in loaded if not path.startswith(_VISIBLE)})
    present = sorted(path for path in Path("/dev").glob("nvidia*") if not path.is_dir())
    files = [path for path in present if minor is None or _is_of(path.name, minor)]
    if not any(_NUMBERED.fullmatch(path.name) for path in files):
        raise FileNotFoundError(f"there is no device file /dev/nvidia{'N' if minor is None else minor}")
    return GpuAccess(tuple(map(str, files)), tuple(shown), library, {"CUDA_VISIBLE_DEVICES": uuid} if uuid else {})


def _is_of(name: str, minor: int) -> bool:
    return not _NUMBERED.fullmatch(name) or name == f"nvidia{minor}"
