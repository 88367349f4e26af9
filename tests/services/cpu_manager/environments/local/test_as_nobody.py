"""The same tests with a manager that is an ordinary user, on the rungs that it has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_REPOSITORY = _HERE.parents[4]


@pytest.mark.slow
def test_the_environments_of_an_ordinary_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user; the other tests ran as this ordinary one")
    base = Path("/tmp") / f"treadle-tests-environments-{os.getpid()}"  # pytest's own folders are closed to others
    files = [str(_HERE / name) for name in ("test_lifecycle.py", "test_attacks_in_local.py")]
    become = [sys.executable, "-m", "tests.services.cpu_manager.sandbox.passable", "nobody"]
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    command = [*become, *run, f"--basetemp={base}", *files]
    done = subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True, timeout=280, check=False)
    subprocess.run(["rm", "-rf", str(base)], check=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
