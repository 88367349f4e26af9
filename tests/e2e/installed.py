"""A distribution of Treadle installed into an empty environment, used from a folder with foreign packages."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from treadle.testing.servers import clean_environment

CHECKOUT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
OURS = ("shared", "services", "alembic")


@dataclass(frozen=True)
class Installed:
    """An environment, and a folder with packages named like those of the mesh, which raise when they are imported."""

    venv: Path
    foreign: Path
    environ: dict[str, str]

    def run(self, program: str, *arguments: str | Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in the foreign folder."""
        command = [self.venv / "bin" / program, *arguments]
        return subprocess.run(
            command, cwd=self.foreign, env=self.environ, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def treadle(self, *arguments: str | Path) -> str:
        """Run `treadle`, which must succeed, and return its output."""
        done = self.run("treadle", *arguments)
        assert done.returncode == 0, f"treadle {arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def build(folder: Path) -> dict[str, Path]:
    """Build both distributions of the checkout: `wheel` and `sdist`."""
    _uv("build", "--out-dir", folder, CHECKOUT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def install(distribution: Path, folder: Path, home: Path, extra: str = "") -> Installed:
    """Install a distribution, with dependencies as locked, into a new environment in `folder`."""
    venv, foreign = folder / "venv", folder / "foreign"
    _uv("venv", "--python", Path(sys.executable).resolve(), venv)
    lock = CHECKOUT / "requirements.lock"
    _uv(
        "pip",
        "install",
        "--python",
        venv / "bin" / "python",
        "--constraint",
        lock,
        f"treadle{extra} @ {distribution.as_uri()}",
    )
    for name in OURS:
        (foreign / name).mkdir(parents=True)
        (foreign / name / "__init__.py").write_text(f"raise ImportError('{name} of somebody else')\n")
    path = f"{venv / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    return Installed(venv, foreign, {**clean_environment(), "PATH": path, "TREADLE_HOME": str(home)})


def _uv(*arguments: str | Path) -> None:
    environ = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"}
    command = [UV, "--quiet", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"uv {arguments}\n{done.stdout}\n{done.stderr}"
