from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cpu_manager.graders.compare import Compare, outputs_equal


@pytest.mark.parametrize(
    ("actual", "expected", "equal_in"),
    [
        (b"1 2\n3\n", "1 2\n3\n", {"exact", "lines", "tokens", "numeric"}),
        (b"1 2  \n3", "1 2\n3\n\n", {"lines", "tokens", "numeric"}),
        (b"1 2\r\n3\r\n", "1 2\n3\n", {"lines", "tokens", "numeric"}),
        (b"1\n2\n3\n", "1 2 3\n", {"tokens", "numeric"}),
        (b" 1\n", "1\n", {"tokens", "numeric"}),
        (b"1\n\n2\n", "1\n2\n", {"tokens", "numeric"}),
        (b"0.3333333\n", "0.33333\n", {"numeric"}),
        (b"1.0\n", "1\n", {"numeric"}),
        (b"0.3334\n", "0.33333\n", set()),
        (b"", "", {"exact", "lines", "tokens", "numeric"}),
        (b"\n", "", {"lines", "tokens", "numeric"}),
        (b"", "0\n", set()),
        (b"YES\n", "yes\n", set()),
        (b"nan\n", "1\n", set()),
        (b"inf\n", "inf\n", {"exact", "lines", "tokens", "numeric"}),
        (b"1\n", "inf\n", set()),
        (b"inf\n", "1e400\n", {"numeric"}),
        (b"12345678901234567891\n", "12345678901234567890\n", set()),
        (b"9007199254740993\n", "9007199254740992\n", set()),  # 16 digits: equal as floats
        (b"-9007199254740993\n", "-9007199254740992\n", set()),
        (b"100000000000001\n", "100000000000000\n", {"numeric"}),  # 15 digits: within the tolerance
        (b"9999999999999999\n", "10000000000000000.0\n", {"numeric"}),  # only one of them is an integer
        (b"1.0000000000000001\n", "1\n", {"numeric"}),
        (b"1." + b"0" * 62 + b"\n", "1\n", {"numeric"}),  # 64 characters
        (b"1." + b"0" * 63 + b"\n", "1\n", set()),  # 65 characters are text
        (b"1\n", "1." + "0" * 62 + "\n", {"numeric"}),
        (b"1\n", "1." + "0" * 63 + "\n", set()),
        (b"\xff\n", "\ufffd\n", {"lines", "tokens", "numeric"}),
    ],
)
def test_each_mode_defines_which_outputs_are_equal(actual: bytes, expected: str, equal_in: set[Compare]) -> None:
    modes: tuple[Compare, ...] = ("exact", "lines", "tokens", "numeric")
    assert {mode for mode in modes if outputs_equal(actual, expected, mode)} == equal_in


@given(st.binary(), st.text())
def test_each_mode_forgives_at_least_what_the_one_before_it_does(actual: bytes, expected: str) -> None:
    equal = [outputs_equal(actual, expected, mode) for mode in ("lines", "tokens", "numeric")]
    assert equal == sorted(equal)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_text_equals_itself_in_every_mode(text: str) -> None:
    modes: tuple[Compare, ...] = ("exact", "lines", "tokens", "numeric")
    assert all(outputs_equal(text.encode(), text, mode) for mode in modes)


def test_an_endless_number_is_compared_as_text() -> None:
    assert not outputs_equal(b"9" * 1_000_000, "8" * 1_000_000, "numeric")
