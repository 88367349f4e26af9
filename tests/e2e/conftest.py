"""Fixtures of tests against running services."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest


@pytest.fixture
def exit_stack() -> Iterator[ExitStack]:
    """Services that a test has started; they end with it."""
    with ExitStack() as entered:
        yield entered
