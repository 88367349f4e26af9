"""Programs of commands, as this host finds them."""

from __future__ import annotations

import os
import shutil

from shared.model_services.entries import ServiceEntry
from shared.runtime.errors import SHOWN_CHARS


def missing_program(entry: ServiceEntry) -> str:
    """Return why a command of an entry cannot be started on this host; empty if each can. O(degrees) look-ups."""
    for degree in entry.degrees:
        program = (entry.command_of(degree) or [""])[0]
        if program and "{" not in program and not _is_found(program, entry):
            return (
                f"command: there is no program {program[:SHOWN_CHARS]!r} on this node that this account can execute; "
                "write its whole path, or install it in a folder of PATH"
            )
    return ""


def _is_found(program: str, entry: ServiceEntry) -> bool:
    """Return whether a program exists as its start would look for it: by the PATH that its environment has."""
    return shutil.which(program, path=entry.env.get("PATH", os.environ.get("PATH"))) is not None
