"""Optional packages of these tests. Without them tests are skipped; with TREADLE_REQUIRE_TORCH set they fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.gpu_manager.torch_server.installed import check_torch, minilm_folder
from tests.services.gpu_manager.torch_server.models import DECODER, ENCODER, write_decoder, write_encoder
from tests.services.gpu_manager.torch_server.server import RunningServer, running_server


@pytest.fixture(scope="session")
def torch_installed() -> None:
    """Ask for this in a test that computes."""
    check_torch()


@pytest.fixture(scope="session")
def minilm(torch_installed: None) -> Path:
    """Folder of the MiniLM sentence encoder."""
    return minilm_folder()


@pytest.fixture(scope="session")
def embedder(minilm: Path) -> Iterator[RunningServer]:
    """A server of MiniLM. Its tests leave it resident."""
    with running_server(minilm, "--device", "cpu") as server:
        yield server


@pytest.fixture(scope="session")
def scorer(torch_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of a small reward model, with small limits. Its tests leave it resident."""
    folder = write_encoder(tmp_path_factory.mktemp("scorer"), ENCODER)
    limits = ("--body-bytes", "2048", "--requests", "4", "--timeout-s", "20")
    with running_server(folder, "--device", "cpu", *limits) as server:
        yield server


@pytest.fixture(scope="session")
def teacher(torch_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of a small decoder without a tokenizer."""
    with running_server(write_decoder(tmp_path_factory.mktemp("teacher"), DECODER), "--device", "cpu") as server:
        yield server
