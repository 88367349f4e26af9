"""Backends under test, whose engines are stopped after each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.gpu_manager.backends.engine_folders import EngineFolders
from services.gpu_manager.backends.engine_http import open_engines
from tests.services.gpu_manager.backends.engines import Engines


@pytest.fixture
async def engines(tmp_path: Path) -> AsyncIterator[Engines]:
    async with open_engines() as client:
        engines = Engines(client, EngineFolders(tmp_path / "engines"))
        try:
            yield engines
        finally:
            await engines.close()
