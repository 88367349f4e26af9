"""Expressions of sizes, and the declarations of a kernel."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.kinds.cuda import CudaKernel, evaluated

SIZES = {"n": 1000, "m": 3}


@pytest.mark.parametrize(
    ("text", "value"), [("n", 1000), ("ceildiv(n, 256)", 4), ("n * m - 1", 2999), ("min(n, m) + n // 7", 145), (5, 5)]
)
def test_an_expression_has_its_value(text: str | int, value: int) -> None:
    assert evaluated(text, SIZES) == value


@pytest.mark.parametrize(
    "text",
    ["k", "n.__class__", "n ** n", "__import__('os')", "n // 0", "m - n", "n * n * n * n * n * n", "1.5", "(" * 90, ""],
)
def test_anything_else_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # the message is shown to people
        evaluated(text, SIZES)


def params(**changes: Any) -> dict[str, Any]:
    arguments = [
        {"name": "a", "role": "input", "dtype": "float32", "shape": ["n"]},
        {"name": "out", "role": "output", "dtype": "float32", "shape": ["n"]},
        {"name": "n", "role": "scalar", "dtype": "int32", "value": "n"},
    ]
    launch = {"grid": ["ceildiv(n, 256)"], "block": [256]}
    return {"kernel": "double_it", "arguments": arguments, "launch": launch, "cases": [{"sizes": {"n": 1000}}],
            "reference": "def reference(a, n):\n    return 2 * a\n"} | changes  # fmt: skip


def test_a_declaration_is_read() -> None:
    assert msgspec.convert(params(), CudaKernel).cases[0].sizes == {"n": 1000}


@pytest.mark.parametrize(
    "changes",
    [
        {"arguments": [{"name": "a", "role": "input", "dtype": "float32", "shape": ["n"]}]},
        {"launch": {"grid": ["q"], "block": [1]}},
        {"score": "speedup"},
        {"kernel": "a b"},
        {"cases": []},
    ],
)
def test_a_declaration_that_cannot_run_is_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(params(**changes), CudaKernel)
