"""Removes containers that a killed manager of the stack has left. Runs when the stack is down."""

import contextlib
import subprocess
from pathlib import Path
from typing import Final

from treadle.mesh import mesh_command

REMOVER: Final = "services.cpu_manager.environments.docker.leftovers"
"""Runs as a program, not an import, because the stack only has the names of services."""
LIMIT_S: Final = 60.0


def remove_containers(root: Path) -> bool:
    """Remove the containers recorded in ``run/``. Return whether there was any record. Without one it is quick.

    A manager that ended in good order has removed its containers and its record. Call it when no service runs.
    """
    records = sorted((root / "run").glob("containers-*.json"))
    for record in records:
        # It logs what it cannot remove; then the record stays for the next time.
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(mesh_command(REMOVER, str(record)), timeout=LIMIT_S, check=False)
    return bool(records)
