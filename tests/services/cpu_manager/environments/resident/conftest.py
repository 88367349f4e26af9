"""The resident's file."""

from pathlib import Path

import pytest

from services.cpu_manager.environments.bundle import resident as bundle


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "resident.pyz"
    path.write_bytes(bundle())
    return path
