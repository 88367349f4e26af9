"""Which zygote a program is forked from: lean unless it imports something heavy."""

from __future__ import annotations

import pytest

from services.cpu_manager.sandbox.protocol import PythonJob
from services.cpu_manager.sandbox.zygotes import HEAVY_SUFFIX, zygote_for


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np",
        "import os, asyncio",
        "    from multiprocessing import Pool",
        "x = 1; import ctypes",
        "from unittest.mock import patch; import logging",
    ],
)
def test_a_program_that_imports_something_heavy_finds_it_imported(source: str) -> None:
    assert zygote_for(PythonJob(source=source)) == "default" + HEAVY_SUFFIX


@pytest.mark.parametrize(
    "source", ["import math, re", "queue = []", "# a struct of arrays\nprint('numpy')", "from typing import List", ""]
)
def test_every_other_program_is_forked_from_the_lean_one(source: str) -> None:
    assert zygote_for(PythonJob(source=source)) == "default"


def test_what_the_tests_import_counts_too_and_names_stay_apart() -> None:
    assert zygote_for(PythonJob(payload=b"import numpy", zygote="default@eve")) == "default@eve" + HEAVY_SUFFIX
