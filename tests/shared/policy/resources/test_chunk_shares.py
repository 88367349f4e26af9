"""Shares in whole chunks."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from shared.policy.resources.chunk_shares import spread_chunks
from shared.policy.resources.ledger import spread
from tests.shared.policy.resources.test_ledger import ready
from tests.shared.policy.strategies import node

nodes_of = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=4)


@given(nodes_of, st.integers(0, 30), st.sampled_from([1, 2, 4]), st.data())
def test_shares_are_whole_chunks_and_enough(
    given: list[tuple[int, int]], wanted: int, chunk: int, data: st.DataObject
) -> None:
    nodes = [ready(f"n{at}", cores, used=min(used, cores)) for at, (cores, used) in enumerate(given)]
    at_least = {one.name: data.draw(st.integers(0, one.capacity["cores"])) for one in nodes if data.draw(st.booleans())}
    shares = spread_chunks(wanted, reversed(nodes), "cores", at_least, chunk)
    assert shares == spread_chunks(wanted, nodes, "cores", at_least, chunk), "whatever the order of the nodes"
    least, capacity = {}, {one.name: one.capacity["cores"] for one in nodes}
    for one in nodes:
        least[one.name] = max(one.taken("cores"), at_least.get(one.name, 0))
        assert least[one.name] <= shares[one.name] <= capacity[one.name]
        assert shares[one.name] % chunk == 0 or shares[one.name] == capacity[one.name]
    ways = [
        sum(way)
        for way in product(*({*range(0, capacity[name] + 1, chunk), capacity[name]} for name in shares))
        if all(units >= least[name] for units, name in zip(way, shares, strict=True))
    ]
    total = sum(shares.values())
    assert total >= min(wanted, sum(capacity.values()))
    assert total - wanted < chunk or total == min(ways)
    whole = {name: shares[name] // chunk for name in shares}
    given_more = [name for name in shares if whole[name] > -(-least[name] // chunk)]
    assert all(
        whole[name] <= whole[other] + 1
        for name in given_more
        for other in shares
        if capacity[other] // chunk > whole[other]
    ), "even"


@given(nodes_of, st.integers(0, 30))
def test_chunks_of_one_unit_are_a_plain_spread(given: list[tuple[int, int]], wanted: int) -> None:
    nodes = [ready(f"n{at}", cores, used=min(used, cores)) for at, (cores, used) in enumerate(given)]
    assert spread_chunks(wanted, nodes, "cores", {}, 1) == spread(wanted, nodes, "cores", {})


def test_two_units_for_one_engine_are_on_one_node() -> None:
    nodes = [node("a", {"gpus": 8}), node("b", {"gpus": 8})]
    assert spread_chunks(2, nodes, "gpus", {}, 2) == {"a": 2, "b": 0}
    assert spread_chunks(6, nodes, "gpus", {}, 2) == {"a": 4, "b": 2}
    assert spread_chunks(3, nodes, "gpus", {"b": 1}, 2) == {"a": 2, "b": 2}
