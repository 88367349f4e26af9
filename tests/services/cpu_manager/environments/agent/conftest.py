"""The agent as one file, which any Python from 3.6 can run."""

import zipfile
from pathlib import Path

import pytest

from services.cpu_manager.environments import agent


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Zip application, started with `fd:N` or a path to listen at. Not compressed, because some Pythons lack zlib."""
    path = tmp_path / "agent.pyz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("__main__.py", "from agent.serving import main\n\nmain()\n")
        for module in sorted(Path(agent.__file__).parent.glob("*.py")):
            archive.writestr(f"agent/{module.name}", module.read_bytes())
    return path
