"""Containers that a stack's manager left behind because it was killed: removed when the stack is down."""

import contextlib
import subprocess
from pathlib import Path
from typing import Final

from treadle.mesh import mesh_command

REMOVER: Final = "services.cpu_manager.environments.docker.leftovers"
"""A program, not an import: the stack knows services by name alone."""
LIMIT_S: Final = 60.0


def remove_containers(root: Path) -> bool:
    """Remove what the records in ``run/`` name; whether there was any record. Costs a look at a folder where not.

    A manager that ended in good order has removed its containers and its record. Call it when no service runs.
    """
    records = sorted((root / "run").glob("containers-*.json"))
    for record in records:
        # What it cannot remove it logs, and the record stays for the next time.
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(mesh_command(REMOVER, str(record)), timeout=LIMIT_S, check=False)
    return bool(records)
