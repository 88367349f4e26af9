"""Times in headers, as providers and drafts document them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.quota_manager.retry_headers import MOST_WAIT_S, wait_s

NOW = 1_700_000_000.0
"""2023-11-14T22:13:20Z."""

REFUSED = [
    ({"retry-after": "20"}, 20.0),
    ({"retry-after": "0.5"}, 0.5),
    ({"retry-after": "Tue, 14 Nov 2023 22:14:20 GMT"}, 60.0),
    ({"retry-after": "Tuesday, 14-Nov-23 22:14:20 GMT"}, 60.0),
    ({"retry-after": "Tue, 14 Nov 2023 22:00:00 GMT"}, 0.0),
    ({"retry-after-ms": "1250", "retry-after": "2"}, 1.25),
    ({"x-ms-retry-after-ms": "1500"}, 1.5),
    ({"retry-after": "86400"}, 3600.0),
    ({"retry-after": "7", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 7.0),
    ({"x-ratelimit-limit": "60", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "1700000090"}, 90.0),
    ({"x-rate-limit-limit": "15", "x-rate-limit-remaining": "0", "x-rate-limit-reset": "1700000900"}, 900.0),
    ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1700000090000"}, 90.0),
    ({"x-ratelimit-remaining": "0", "x-ratelimit-reset-after": "1.337"}, 1.337),
    ({"x-ratelimit-reset": "30"}, 30.0),
    ({"retry-after": "Tue Nov 14 22:14:20 2023"}, 60.0),
    ({"retry-after": "Fri Dec  1 22:13:20 2023"}, 3600.0),
    ({"retry-after": "Tue Nov 14 22:13:19 2023"}, 0.0),
]
ANY_ANSWER = [
    ({"x-ratelimit-remaining-requests": "59", "x-ratelimit-reset-requests": "1s"}, 0.0),
    ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1s"}, 1.0),
    ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, 360.0),
    ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "120ms"}, 0.12),
    ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m30.951s"}, 90.951),
    ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "20h0m0s"}, 3600.0),
    (
        {
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "2s",
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": "9s",
        },
        9.0,
    ),
    (
        {"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": "2023-11-14T22:14:00Z"},
        40.0,
    ),
    (
        {
            "anthropic-ratelimit-input-tokens-remaining": "0",
            "anthropic-ratelimit-input-tokens-reset": "2023-11-14T23:13:50+01:00",
        },
        30.0,
    ),
    (
        {"anthropic-ratelimit-requests-remaining": "49", "anthropic-ratelimit-requests-reset": "2023-11-14T22:14:00Z"},
        0.0,
    ),
    ({"ratelimit-limit": "100", "ratelimit-remaining": "0", "ratelimit-reset": "50"}, 50.0),
    ({"ratelimit-limit": "100", "ratelimit-remaining": "1", "ratelimit-reset": "50"}, 0.0),
    ({"ratelimit": "limit=100, remaining=0, reset=5"}, 5.0),
    ({"ratelimit": "limit=100, remaining=50, reset=5"}, 0.0),
    ({"ratelimit": '"burst";r=0;t=30, "daily";r=900;t=86400'}, 30.0),
    ({"ratelimit": '"default";r=50;t=30'}, 0.0),
    ({"ratelimit-policy": '"burst";q=100;w=60,"daily";q=1000;w=86400', "ratelimit": '"burst";r=0'}, 60.0),
    ({"retry-after": "120"}, 0.0),
    ({}, 0.0),
]
HOSTILE = [
    "-5", "+5", "nan", "inf", "1e9", "0x10", "١٢", "5 seconds", "1_000", "", " ", "9" * 400, "s", "ms", "m0s", "-1s",
    "Tue, 99 Foo 2023 22:14:20 GMT", "2023-11-14T22:14:00", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59",
    "Tue, 14 Nov 99999999999 22:14:20 GMT", "\x00", "5\n5", ";;;===,,,", '"', "1" * 5000,
]  # fmt: skip


@pytest.mark.parametrize(("headers", "expected_s"), REFUSED)
def test_a_refusal_names_a_time(headers: dict[str, str], expected_s: float) -> None:
    assert wait_s(list(headers.items()), NOW, refused=True) == pytest.approx(expected_s)


@pytest.mark.parametrize(("headers", "expected_s"), ANY_ANSWER)
def test_nothing_remaining_counts_on_any_answer(headers: dict[str, str], expected_s: float) -> None:
    assert wait_s(list(headers.items()), NOW, refused=False) == pytest.approx(expected_s)


@pytest.mark.parametrize("value", HOSTILE)
def test_values_without_a_valid_form_are_ignored(value: str) -> None:
    for headers in (
        {"retry-after": value},
        {"x-ratelimit-remaining": "0", "x-ratelimit-reset": value},
        {"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": value},
        {"ratelimit-remaining": value, "ratelimit-reset": "5"},
        {"ratelimit": f'"a";r=0;t={value}'},
    ):
        found = wait_s(list(headers.items()), NOW, refused=True)
        assert found in (0.0, MOST_WAIT_S) if value.startswith(("9999-", "9" * 400)) else found in (0.0, 5.0), headers


def test_lines_of_a_list_are_read_together() -> None:
    limits = [("ratelimit", '"burst";r=0;t=4'), ("ratelimit", '"daily";r=900;t=86400'), ("ratelimit", '"all";r=0')]
    policies = [("ratelimit-policy", '"all";q=5;w=9'), ("ratelimit-policy", '"daily";q=1000;w=86400')]
    assert wait_s(limits, NOW, refused=False) == 4.0
    assert wait_s(limits + policies, NOW, refused=False) == 9.0
    assert wait_s([("retry-after", "7"), ("retry-after", "20")], NOW, refused=True) == 20.0


@given(st.dictionaries(st.sampled_from([*REFUSED[7][0], "ratelimit", *REFUSED[8][0], *ANY_ANSWER[7][0]]), st.text()))
def test_any_value_gives_a_bounded_time(headers: dict[str, str]) -> None:
    assert 0.0 <= wait_s(list(headers.items()), NOW, refused=True) <= MOST_WAIT_S
