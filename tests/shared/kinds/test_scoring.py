"""Pointers, patterns and numbers in answers."""

from __future__ import annotations

import pytest

from shared.kinds.scoring import (
    LONGEST_NUMBER,
    MOST_SEARCHED,
    InvalidPattern,
    NoScore,
    at_pointer,
    compiled,
    last_match,
    number,
    scaled,
)

RFC_6901 = {
    "foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5, 'k"l': 6, " ": 7, "m~n": 8,
}  # fmt: skip
"""The document of RFC 6901, section 5."""


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", RFC_6901), ("/foo", ["bar", "baz"]), ("/foo/0", "bar"), ("/", 0), ("/a~1b", 1), ("/c%d", 2), ("/e^f", 3),
        ("/g|h", 4), ("/i\\j", 5), ('/k"l', 6), ("/ ", 7), ("/m~0n", 8),
    ],
)  # fmt: skip
def test_pointers_are_those_of_rfc_6901(pointer: str, value: object) -> None:
    assert at_pointer(RFC_6901, pointer) == value


@pytest.mark.parametrize("pointer", ["/foo/2", "/foo/00", "/foo/-1", "/foo/-", "/foo/x", "/bar", "/foo/0/a", "/foo/²"])
def test_a_pointer_to_nothing_is_no_score(pointer: str) -> None:
    with pytest.raises(NoScore, match="has nothing at"):
        at_pointer(RFC_6901, pointer)


@pytest.mark.parametrize("pattern", ["(", "a", "(a)(b)", "(?=a)(b)", r"(a)\1", "(" * 2000, "((a{1,1000}){1,1000})"])
def test_an_invalid_pattern_is_named(pattern: str) -> None:
    with pytest.raises(InvalidPattern, match=r"^pattern: "):
        compiled(pattern)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("([0-9]+)", "1 2 3", "3"),
        ("score: (.*)", "score: 1\nscore: 2\n", "2"),
        ("(x?)", "abc", ""),
        ("([0-9]+)", "7" + " " * (MOST_SEARCHED - 1), "7"),
    ],
)
def test_the_last_match_counts(pattern: str, text: str, found: str) -> None:
    assert last_match(pattern, text) == found


def test_only_the_end_of_a_text_is_searched() -> None:
    with pytest.raises(NoScore, match="does not match"):
        last_match("([0-9]+)", "7" + " " * MOST_SEARCHED)


@pytest.mark.parametrize(
    ("value", "found"), [(1, 1.0), (0.5, 0.5), (True, 1.0), (False, 0.0), (" -2.5 ", -2.5), ("1e2", 100.0), ("+3", 3.0)]
)
def test_numbers(value: object, found: float) -> None:
    assert number(value) == found


@pytest.mark.parametrize(
    "value", [None, [], {}, "", "8/10", "nan", "-inf", "1_0", "0x1f", "1" * (LONGEST_NUMBER + 1), 10**400, "1e999"]
)
def test_what_is_no_number(value: object) -> None:
    with pytest.raises(NoScore, match="the score is no number"):
        number(value)


def test_a_score_stays_finite_after_its_scale() -> None:
    assert scaled("7", 0.5) == 3.5
    with pytest.raises(NoScore, match="not finite"):
        scaled(1e308, 1e9)
