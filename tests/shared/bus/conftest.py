"""Valkey with the functions loaded, and one of a test module's own where its settings are changed."""

import socket
from collections.abc import Iterator

import pytest

from tests.shared.bus.fixtures import journal, reader, valkey
from treadle.testing.servers import running_valkey, temporary_home

__all__ = ["journal", "reader", "valkey"]


@pytest.fixture
def private_url() -> Iterator[str]:
    """A server for this module alone: its settings may be changed."""
    with temporary_home() as root, running_valkey(root, durable=False) as url:
        yield url


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
