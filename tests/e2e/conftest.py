"""Fixtures of tests against running services."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from treadle.model_demo.models import ModelsMissing, check_packages


@pytest.fixture
def exit_stack() -> Iterator[ExitStack]:
    """Services that a test has started; they end with it."""
    with ExitStack() as entered:
        yield entered


@pytest.fixture(scope="session")
def real_models() -> None:
    """Ask for this in a test that runs the models of `treadle demo --gpu`: `scripts/torch-cpu` installs them."""
    try:
        check_packages()
    except ModelsMissing as missing:
        if os.environ.get("TREADLE_REQUIRE_TORCH"):  # set by .ci/run, where nothing is skipped
            pytest.fail(str(missing))
        pytest.skip(str(missing))
