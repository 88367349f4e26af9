"""Outputs are sent as JSON of bounded size."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.cpu_manager.outputs import encode_output

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=8), inner, max_size=8)
)
outputs = st.dictionaries(st.text(max_size=8), values | st.text(min_size=200, max_size=2000), max_size=6)

SMALLEST = len(b'{"truncated":true}')


@given(outputs, st.integers(0, 3000))
def test_it_is_json_within_its_bound(output: dict[str, Any], limit: int) -> None:
    encoded = encode_output(output, limit)

    assert isinstance(json.loads(encoded), dict)
    assert len(encoded) <= max(limit, SMALLEST)


@given(outputs, st.integers(0, 3000))
def test_it_is_whole_or_flagged_as_truncated(output: dict[str, Any], limit: int) -> None:
    decoded = json.loads(encode_output(output, limit))

    assert decoded == output or decoded["truncated"] is True


@given(outputs)
def test_an_output_that_fits_is_unchanged(output: dict[str, Any]) -> None:
    assert json.loads(encode_output(output, 1 << 20)) == output


@given(st.text(min_size=500, max_size=2000))
def test_a_long_text_keeps_its_beginning(text: str) -> None:
    decoded = json.loads(encode_output({"stdout": text, "returncode": 1}, 400))

    assert (decoded["returncode"], decoded["truncated"]) == (1, True)
    assert decoded["stdout"]
    assert text.startswith(decoded["stdout"])
