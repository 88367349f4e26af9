"""Warnings about the file of model services (``GPU_MANAGER_SERVICES``), for a person at ``treadle up``.

They are no errors: the GPU manager starts with the entries that are right, and ``treadle services`` shows the others.
"""

from collections.abc import Mapping
from pathlib import Path

from shared.model_services.entries import read_file
from shared.model_services.programs import missing_program
from treadle.stack.services import has_gpus, unused_file

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
    missing = {name: why for name, entry in entries.items() if (why := missing_program(entry))}
    return [
        f"{SETTING}: {file}: entry {name!r}: {why}. This service is not offered; the others are"
        for name, why in sorted({**problems, **missing}.items())
    ]
