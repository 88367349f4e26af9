"""Imports of an installed Treadle, and the root of the mesh's packages."""

from __future__ import annotations

import gc
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from treadle.mesh import extra_is_installed, main, mesh_command, mesh_root

BLOCKED = """
import sys

blocked = {"shared", "services", "pydantic", "fastapi", "numpy", "psutil", "redis"}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(f"{name} is imported")

sys.meta_path.insert(0, Blocker())
"""
DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"
LIGHT = """
blocked.remove("pydantic")  # typer imports it for parameters
import treadle.mesh
treadle.mesh.extra_is_installed = lambda: False
from treadle.cli.main import main
"""


def python(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "code",
    [
        "from treadle import *",
        "import treadle.client.blocking",
        "import treadle.mesh",
        "import sys; from treadle.cli.main import main; sys.argv = ['treadle', '--version']; main()",
        "import sys; from treadle.cli.main import main; sys.argv = ['treadle', '--help']; main()",
        LIGHT + "sys.argv = ['treadle', 'openapi']; main()",
        LIGHT + f"sys.argv = ['treadle', 'openapi', '--since', {str(DOCUMENT)!r}]; main()",
    ],
)
def test_light_imports_and_commands_need_no_package_of_the_mesh(code: str, tmp_path: Path) -> None:
    done = python("-c", BLOCKED + code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_root_has_the_packages_of_the_mesh() -> None:
    assert extra_is_installed()
    assert {"alembic", "services", "shared"} <= {path.name for path in mesh_root().iterdir()}


def test_a_command_of_the_mesh_imports_ours_and_not_those_of_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "__init__.py").write_text("raise ImportError('not ours')\n")
    (tmp_path / "json.py").write_text("raise ImportError('not ours')\n")
    command = mesh_command("treadle.stack.serve", "--help")
    done = python(*command[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "python -m treadle.stack.serve" in done.stdout


@pytest.mark.parametrize(("module", "threshold"), [("treadle.stack.serve", 100_000), ("treadle.stack.prepare", 700)])
def test_a_service_collects_rarely_while_it_starts(
    module: str, threshold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    monkeypatch.setattr(gc, "set_threshold", found.append)
    monkeypatch.setattr(runpy, "run_module", lambda *_, **__: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["-m", module])
    main()
    assert (found or [700]) == [threshold]


def test_completion_offers_commands_and_their_options() -> None:
    command = [str(Path(sys.executable).with_name("treadle"))]
    for typed, offered in (("treadle gr", "grade"), ("treadle grade --bat", "--batch-size")):
        environ = {"_TREADLE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert offered in done.stdout.split(), done.stderr


def test_completion_without_the_extra_offers_commands(tmp_path: Path) -> None:
    for typed, offered in (
        ("treadle gr", "grade"),
        ("treadle openapi --si", "--since"),
        ("treadle grade --he", "--help"),
    ):
        environ = {"_TREADLE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        done = subprocess.run(
            [sys.executable, "-c", BLOCKED + LIGHT + "main()"],
            cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert offered in done.stdout.split(), done.stderr
