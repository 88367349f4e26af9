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
def test_programs_with_heavy_imports_get_the_heavy_zygote(source: str) -> None:
    assert zygote_for(PythonJob(source=source)) == "default" + HEAVY_SUFFIX


@pytest.mark.parametrize(
    "source", ["import math, re", "queue = []", "# a struct of arrays\nprint('numpy')", "from typing import List", ""]
)
def test_other_programs_get_the_lean_zygote(source: str) -> None:
    assert zygote_for(PythonJob(source=source)) == "default"


def test_imports_of_tests_count_and_zygotes_of_tenants_differ() -> None:
    assert zygote_for(PythonJob(payload=b"import numpy", zygote="default@eve")) == "default@eve" + HEAVY_SUFFIX
