"""Warnings about the file of model services (``GPU_MANAGER_SERVICES``), for a person at ``treadle up``.

They are no errors: the GPU manager starts with the entries that are right, and ``treadle services`` shows the others.
The GPU manager reads the memory of real GPUs, so only described ones (``GPU_MANAGER_DEVICES``) are compared here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from shared.model_services.device_fit import missing_devices
from shared.model_services.entries import ServiceEntry, read_file
from shared.model_services.programs import missing_program
from shared.runtime.validation import UNREADABLE
from treadle.stack.services import has_gpus, has_real_gpus, unused_file

SETTING = "GPU_MANAGER_SERVICES"
MOST_BYTES = 4 << 20
"""As the GPU manager reads it."""


def file_warnings(environ: Mapping[str, str]) -> list[str]:
    """Return a line if no GPU manager runs that reads the file, else one for each wrong entry.

    A file that cannot be read at all has none: the GPU manager does not start with it, and its reason is shown.
    """
    if unused := unused_file(environ):
        return [unused]
    file, names = environ.get(SETTING, "").strip(), environ.get("STACK_SERVICES", "")
    if not file or not has_gpus(environ) or (names and "gpu_manager" not in names):
        return []
    try:
        if not Path(file).is_file():
            return []
        with Path(file).open("rb") as opened:
            entries, problems = read_file(opened.read(MOST_BYTES))
    except (OSError, ValueError):
        return []
    device_gb = _described_gb(environ)
    missing = {name: why for name, entry in entries.items() if (why := _missing(entry, device_gb))}
    return [
        f"{SETTING}: {file}: entry {name!r}: {why}. This service is not offered; the others are"
        for name, why in sorted({**problems, **missing}.items())
    ]


def _missing(entry: ServiceEntry, device_gb: list[float]) -> str:
    return (missing_devices(entry, device_gb) if device_gb else "") or missing_program(entry)


def _described_gb(environ: Mapping[str, str]) -> list[float]:
    """Return the memory of each described GPU; empty if none is used, or if the description is wrong.

    The GPU manager does not start with a wrong description, and its reason is shown.
    """
    if has_real_gpus():
        return []
    try:
        described = msgspec.json.decode(environ.get("GPU_MANAGER_DEVICES", ""), type=list[dict[str, Any]])
        return [float(one["memory_gb"]) for one in described]
    except (*UNREADABLE, KeyError, TypeError, ValueError, OverflowError):
        return []
