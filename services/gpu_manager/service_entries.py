"""The operator's file of model services (`GPU_MANAGER_SERVICES`): a JSON object of name -> entry.

Laws (tests/services/gpu_manager/test_service_entries.py):
  - its commands run on this host with the rights of the service, so no other account may write it;
  - a wrong entry stops only its own service. A file that is no JSON object of entries stops the start.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from shared.model_services.entries import FileEntries, read_file
from shared.runtime.settings import WrongSetting

SETTING: Final = "GPU_MANAGER_SERVICES"
MOST_BYTES: Final = 4 << 20
"""Largest file of entries."""
CORRECTION: Final = "name a JSON file of services that this account can read, or no file"


class WrongEntries(WrongSetting):
    """The file of services cannot be read, so the service does not start."""


def load_entries(path: Path | None) -> FileEntries:
    """Return the entries of the operator's file; none without a file, and of the null device.

    Raises:
        WrongEntries: the file cannot be read, or is no JSON object of entries.
    """
    if path is None:
        return FileEntries({}, {})
    where = f"{SETTING}: {path}"
    try:
        if _is_null_device(path):
            return FileEntries({}, {})
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise WrongEntries(f"{where} is no file; {CORRECTION}")
            if mode & stat.S_IWOTH:
                raise WrongEntries(f"{where} has commands, and every account may change it: run `chmod o-w {path}`")
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise WrongEntries(f"{where} cannot be read ({error.strerror}); {CORRECTION}") from None
    if len(content) > MOST_BYTES:
        raise WrongEntries(f"{where} is larger than {MOST_BYTES} bytes")
    try:
        return read_file(content)
    except ValueError as error:
        raise WrongEntries(f"{where}: {error}") from None


def _is_null_device(path: Path) -> bool:
    """Return whether it is /dev/null, also under another name: Compose mounts it where the operator has no file.

    It is not opened, because a mount may forbid devices.
    """
    found = path.stat()
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == Path(os.devnull).stat().st_rdev
