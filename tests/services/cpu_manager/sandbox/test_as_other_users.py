"""The same tests as an ordinary user, and on the rung that root has only if its toolchain is open to all users."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_REPOSITORY = _HERE.parents[3]


@pytest.mark.slow
@pytest.mark.parametrize(("user", "choice"), [("nobody", ""), ("root", "landlock")])
def test_the_sandbox_as(user: str, choice: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user; the other tests ran as this ordinary one")
    base = Path("/tmp") / f"treadle-tests-{user}-{os.getpid()}"  # pytest's own folders are closed to others
    elsewhere = {Path(__file__).name, "test_seccomp.py", "test_attack_table.py"}  # as no user, or as every one
    files = sorted(str(path) for path in _HERE.glob("test_*.py") if path.name not in elsewhere)
    command = [sys.executable, "-m", "tests.services.cpu_manager.sandbox.passable", user, sys.executable]
    command += [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
        f"--basetemp={base}",
        *files,
    ]
    command += ["-k", choice] if choice else []
    done = subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True, timeout=280, check=False)
    print(done.stdout[-3000:])  # noqa: T201  # pytest shows it when this fails
    subprocess.run(["rm", "-rf", str(base)], check=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert " passed" in done.stdout
