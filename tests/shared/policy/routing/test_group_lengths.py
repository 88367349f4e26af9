"""Expected lengths: compared with a plain list of all ended trajectories."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.policy.routing.group_lengths import GroupLengths

lengths = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["", "g", "h"]), st.integers(0, 5000)))


@given(lengths, st.sampled_from(["a", "b"]), st.sampled_from(["", "g", "h"]), st.none() | st.integers(1, 9000),
       st.integers(0, 9000))  # fmt: skip
def test_a_trajectory_is_expected_to_end_as_those_of_its_group(
    ended: list[tuple[str, str, int]], tenant: str, group: str, most: int | None, held: int
) -> None:
    known = GroupLengths()
    for one in ended:
        known.record(*one)
    alike = [tokens for other, its, tokens in ended if (other, its) == (tenant, group) and its and tokens]
    found = known.expected(tenant, group, most, held)
    assert found >= held
    if alike:
        mean = sum(alike) / len(alike)
        bound = mean if most is None else min(mean, most)
        assert max(held, bound) <= found < max(held, bound) + 1
    else:
        assert found == max(held, most or 0)


def test_groups_are_bounded_and_the_oldest_goes_first() -> None:
    known = GroupLengths(most_groups=3)
    for number in range(5):
        known.record("t", f"g{number}", 100)
    known.record("t", "g2", 200)
    assert len(known) == 3
    assert known.expected("t", "g0", 7, 0) == 7
    assert known.expected("t", "g2", None, 0) == 150
