"""The resident as one file, for environments that are not made of the sandbox's own walls."""

from __future__ import annotations

import functools
import io
import zipfile
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).parent / "resident"
_MAIN: Final = "from resident.serving import main\n\nmain()\n"
_MADE: Final = (1980, 1, 1, 0, 0, 0)
NAME: Final = "resident.pyz"
"""Run as `python3 -I -S resident.pyz fd:N` or `... PATH` (any Python from 3.6)."""


@functools.cache
def resident() -> bytes:
    """Return a zip application, the same bytes at every call; about 30 KB, uncompressed (some Pythons lack zlib)."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", _MADE), _MAIN)
        for module in sorted(_PACKAGE.glob("*.py")):
            archive.writestr(zipfile.ZipInfo(f"resident/{module.name}", _MADE), module.read_bytes())
    return packed.getvalue()
