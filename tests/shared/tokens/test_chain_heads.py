"""Chains: compared with all sequences kept as a whole."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from shared.tokens.chain_heads import ChainHeads, Extension, packed

ids = st.lists(st.integers(0, 2), max_size=8)


@given(st.lists(ids, max_size=12), ids)
def test_a_prompt_extends_the_longest_chain_that_begins_it(sequences: list[list[int]], prompt: list[int]) -> None:
    heads = ChainHeads()
    for serial, sequence in enumerate(sequences):
        heads.add(packed(sequence), serial)
    fitting = [(len(one), -serial) for serial, one in enumerate(sequences) if prompt[: len(one)] == one]
    length, serial = max(fitting, default=(0, 0))
    expected = Extension(-serial, length) if fitting else Extension(None, 0)
    assert heads.match(packed(prompt)) == expected


def test_ends_are_bounded_and_the_oldest_goes_first() -> None:
    heads = ChainHeads(most=3)
    for number in range(5):
        heads.add(packed([number, 1]), number)
    assert len(heads) == 3
    assert heads.match(packed([1, 1, 7])) == Extension(None, 0)
    assert heads.match(packed([4, 1, 7])) == Extension(4, 2)


def test_a_stored_end_is_found_again() -> None:
    head = ChainHeads().add(packed(range(1000)), 7)
    restored = ChainHeads()
    restored.restore(head)
    assert restored.match(packed(range(1001))) == Extension(7, 1000)
    assert restored.match(packed([*range(999), 0, 1])) == Extension(None, 0)


def test_an_end_takes_little_memory_whatever_its_length() -> None:
    head = ChainHeads().add(packed(range(200_000)), 1)
    assert sys.getsizeof(head) + sum(map(sys.getsizeof, head)) < 200
