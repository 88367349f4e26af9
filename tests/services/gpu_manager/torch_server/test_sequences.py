"""Sizes of batches: they are beginnings of the queue, as long as possible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.gpu_manager.torch_server.sequences import batch_size


@given(lengths=st.lists(st.integers(1, 40), max_size=20), most=st.integers(1, 100))
def test_a_batch_is_the_longest_beginning_that_fits(lengths: list[int], most: int) -> None:
    size = batch_size(lengths, most)

    def fits(count: int) -> bool:
        return count <= 1 or max(lengths[:count]) * count <= most

    assert 0 <= size <= len(lengths)
    assert fits(size)
    assert size > 0 or not lengths
    assert size == len(lengths) or not fits(size + 1)
