"""Sums of usage: by name, of positive and finite amounts, with a bounded number of names."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.policy.model.results import MOST_USED, USAGE, AttemptResult, Usage, added

usages = st.dictionaries(
    st.sampled_from(["cpu_s", "gpu_s", "tokens", "money", "mine_s"]), st.integers(1, 1000), max_size=5
)


@given(st.lists(usages, max_size=6))
def test_a_sum_is_that_of_each_name(found: list[dict[str, int]]) -> None:
    total: Usage = {}
    for usage in found:
        total = added(total, usage)

    names = {name for usage in found for name in usage}
    assert total == {name: sum(usage.get(name, 0) for usage in found) for name in names}


@pytest.mark.parametrize("amount", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_an_amount_that_cannot_be_is_ignored(amount: float) -> None:
    assert added({"cpu_s": 1.0}, {"cpu_s": amount, "tokens": amount}) == {"cpu_s": 1.0}
    assert added({}, {"cpu_s": amount}) == {}


def test_summands_are_not_changed() -> None:
    one, other = {"cpu_s": 1.0}, {"cpu_s": 2.0}

    assert (added(one, other), one, other) == ({"cpu_s": 3.0}, {"cpu_s": 1.0}, {"cpu_s": 2.0})


def test_the_number_of_names_is_bounded_and_known_ones_still_grow() -> None:
    many = {f"name{number}": 1.0 for number in range(MOST_USED + 4)}

    total = added(added({}, many), many)

    assert total == {f"name{number}": 2.0 for number in range(MOST_USED)}


def test_the_documented_names() -> None:
    assert list(USAGE) == ["cpu_s", "gpu_s", "tokens", "money"]


def test_a_result_has_only_what_differs_on_the_wire() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(AttemptResult("lost"))) == {"status": "lost"}
