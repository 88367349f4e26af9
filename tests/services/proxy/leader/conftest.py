"""Fixtures of the leader's tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog


@pytest.fixture
def captured_logs() -> Iterator[list[Any]]:
    """The log events of a test. Tracebacks are not formatted: with the locals of a dispatcher they take minutes."""
    with structlog.testing.capture_logs() as events:
        yield events
