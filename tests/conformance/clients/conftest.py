"""Tools that generate and compile clients. `scripts/client-tools` installs it into .clients/."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.conformance.clients.tools import HOME, Tools

NEEDED = ("go", "javac", "java")


@pytest.fixture(scope="session")
def tools() -> Tools:
    """Skips the test with the reason where something is missing; fails it in CI."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if not (HOME / "installed").exists():
        missing.append("scripts/client-tools has not run")
    missing += [str(path) for path in (*Tools.JARS, Tools.VALIDATOR) if not path.exists()]
    if missing:
        reason = f"generated clients need {', '.join(missing)}"
        if os.environ.get("CI") or os.environ.get("TREADLE_REQUIRE_CLIENTS"):
            pytest.fail(reason)
        pytest.skip(reason)
    return Tools()


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the generated clients, a folder each."""
    return tmp_path_factory.mktemp("clients")
