"""The ledger of units: spreads compared with every possible one, placement, reservations, orphans, inventories."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.policy.resources.ledger import Node, place, spread
from shared.policy.resources.orphans import Orphan
from shared.policy.resources.pools import Pool, ZeroQueue, reserve
from tests.shared.policy.strategies import CORES, node

small = st.integers(0, 4)
vectors = st.fixed_dictionaries({"cores": st.integers(0, 4), "memory": st.integers(0, 4)})


def ready(name: str, cores: int, *, used: int = 0, share: int | None = None, kinds: str = "run") -> Node:
    made = node(name, {"cores": cores}, kinds=kinds)
    made.ready = True
    made.take({"cores": used}, "another")
    if share is not None:
        made.own("cores", share)
    return made


# ---- spread ----------------------------------------------------------------------------------------------------------


def spreads(wanted: int, nodes: list[Node], at_least: dict[str, int]) -> list[dict[str, int]]:
    """Every spread between the running (or required) units and the capacity, with the sum nearest to the wanted one."""
    spans = []
    for one in nodes:
        capacity = one.capacity["cores"]
        spans.append(range(min(capacity, max(one.used["cores"], at_least.get(one.name, 0))), capacity + 1))
    total = max(sum(span[0] for span in spans), min(wanted, sum(span[-1] for span in spans)))
    names = [one.name for one in nodes]
    return [dict(zip(names, way, strict=True)) for way in product(*spans) if sum(way) == total]


@given(
    st.integers(0, 20),
    st.lists(st.tuples(st.integers(0, 5), small), min_size=1, max_size=4),
    st.dictionaries(st.sampled_from(["n0", "n1"]), small, max_size=2),
)
def test_shares_are_the_most_even_of_all_spreads(
    wanted: int, spans: list[tuple[int, int]], at_least: dict[str, int]
) -> None:
    """Most even: sorted, no other spread is larger at the first place where they differ (max-min fair)."""
    nodes = [ready(f"n{at}", capacity, used=min(used, capacity)) for at, (capacity, used) in enumerate(spans)]
    shares = spread(wanted, reversed(nodes), "cores", at_least)
    ways = spreads(wanted, nodes, at_least)
    assert shares in ways
    fairest = max(sorted(way.values()) for way in ways)
    assert sorted(shares.values()) == fairest
    assert shares == spread(wanted, nodes, "cores", at_least), "whatever the order of the nodes"


def test_a_remainder_is_assigned_by_name() -> None:
    assert spread(5, [ready("b", 4), ready("c", 4), ready("a", 4)], "cores") == {"a": 2, "b": 2, "c": 1}


def test_spreading_over_no_nodes_is_nothing() -> None:
    assert spread(5, [], "cores") == {}


def test_a_thousand_nodes_of_many_units_are_spread_at_once() -> None:
    nodes = [ready(f"n{at:04}", 10**9 if at % 2 else 10, used=at % 7) for at in range(1000)]
    shares = spread(10**11, nodes, "cores")
    assert sum(shares.values()) == 10**11
    wide = [share for name, share in shares.items() if share > 10]
    assert len(wide) == 500
    assert max(wide) - min(wide) <= 1


# ---- place -----------------------------------------------------------------------------------------------------------


def test_a_grant_goes_to_the_node_with_the_most_free_units_and_by_name_where_equal() -> None:
    nodes = [ready("a", 8, used=7), ready("b", 8, used=3), ready("c", 5), ready("d", 5)]
    found = place(nodes, "r", "run", {"cores": 1}, "cores")
    assert found is not None
    assert found.name == "b"
    nodes[1].take({"cores": 1}, "r")
    for name in "bcd":  # 4, 5 and 5 are free
        found = place(nodes, "r", "run", {"cores": 4}, "cores")
        assert found is not None
        assert found.name == {"b": "c", "c": "d", "d": "b"}[name]
        found.take({"cores": 4}, "r")
    assert place(nodes, "r", "run", {"cores": 4}, "cores") is None


@pytest.mark.parametrize(
    "unfit",
    [
        ready("n", 4, used=4),
        ready("n", 4, share=0),
        ready("n", 4, used=3, share=2),
        ready("n", 4, kinds="judge"),
        node("n", {"cores": 4}),
        node("n", {"memory": 4}),
    ],
    ids=["full", "owns nothing", "share lowered", "other kind", "not ready", "other resource"],
)
def test_a_node_that_does_not_fit_is_not_taken(unfit: Node) -> None:
    assert place([unfit], "r", "run", {"cores": 1}, "cores") is None


def test_an_action_is_not_placed_where_it_is_an_orphan() -> None:
    host = ready("n", 4)
    host.orphans["r"] = Orphan(0, 1, {"cores": 1}, 1, 0.0)
    assert place([host], "r", "run", {"cores": 1}, "cores") is None
    assert place([host], "other", "run", {"cores": 1}, "cores") is host


@given(vectors, vectors, vectors)
def test_a_vector_fits_whole_or_not_at_all(
    capacity: dict[str, int], used: dict[str, int], units: dict[str, int]
) -> None:
    host = node("n", capacity)
    host.ready = True
    host.take(used, "another")
    whole = all(used[name] + units[name] <= capacity[name] or not units[name] for name in units)
    assert host.fits("r", "run", units) == whole
    assert all(host.free(name) == max(0, capacity[name] - used[name]) for name in capacity)


def test_unused_units_cannot_be_released() -> None:
    host = node("n")
    host.take({"cores": 1}, "r")
    with pytest.raises(AssertionError, match="n: more cores given back than taken"):
        host.give_back({"cores": 2}, "r")


# ---- orphans and inventory requests ----------------------------------------------------------------------------------


def test_an_orphan_ends_by_its_own_attempt_alone() -> None:
    host = node("n")
    host.take({"cores": 2}, "r")
    host.orphans["r"] = Orphan(1, 2, {"cores": 2}, 7, 0.0)
    for stage, attempt in ((1, 1), (0, 2)):
        host.orphan_ended("r", stage, attempt)
        assert host.used == {"cores": 2}
    host.orphan_ended("r", 1, 2)
    host.orphan_ended("r", 1, 2)
    assert host.used == {"cores": 0}


def test_an_inventory_must_list_the_orphans_older_than_its_request() -> None:
    host = node("n")
    host.orphans.update(old=Orphan(0, 1, {}, 3, 0.0), new=Orphan(0, 1, {}, 5, 0.0))
    assert [action for action, _ in host.orphans_until(4)] == ["old"]


@given(st.lists(st.one_of(st.just("ask"), st.just("answer"), st.just("lost answer")), max_size=30))
def test_an_inventory_is_never_matched_to_a_later_request(history: list[str]) -> None:
    host = node("n")
    under_way: list[int] = []
    for serial, event in enumerate(history):
        if event == "ask":
            host.ask(serial, float(serial))
            under_way.append(serial)
        elif under_way:
            asked = under_way.pop(0)
            if event == "answer":
                taken = host.answered()
                assert taken is not None
                assert taken <= asked


def test_an_inventory_without_a_request_is_ignored() -> None:
    assert node("n").answered() is None


# ---- reservations ----------------------------------------------------------------------------------------------------


@given(vectors, vectors, st.lists(st.tuples(st.integers(0, 20), vectors), max_size=5))
def test_a_reservation_is_the_first_moment_at_which_all_units_are_together(
    needed: dict[str, int], free: dict[str, int], ends: list[tuple[int, dict[str, int]]]
) -> None:
    now = 5.0
    moments = []
    for moment in (now, *(float(end) for end, _ in ends if end > now)):
        back = [units for end, units in ends if end <= moment]
        if moment == now:
            back = []
        if all(free[name] + sum(units[name] for units in back) >= needed[name] for name in needed):
            moments.append(moment)
    late = [units for end, units in ends if end <= now]  # overdue: taken to end now
    if all(free[name] + sum(units[name] for units in late) >= needed[name] for name in needed):
        moments.append(now)
    assert reserve(now, needed, free, ends) == min(moments, default=float("inf"))


# ---- units that a pool owns ------------------------------------------------------------------------------------------


@given(
    st.none() | st.integers(0, 12),
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(0, 12),
    st.sampled_from(["off", "on", "blocked"]),
)
def test_a_pool_owns_its_target_and_outside_demand_and_its_head_and_without_a_planner_all_demand(
    target: int | None, outside: int, inside: int, head: int, zero_queue: ZeroQueue
) -> None:
    pool = Pool(CORES, target=target)
    pool.add_demand(outside, outside=True)
    pool.add_demand(inside, outside=False)
    wanted = pool.wanted([ready("a", 4), ready("b", 6)], head, zero_queue)
    asked = {"off": 0, "on": outside + inside, "blocked": 10}[zero_queue]
    assert wanted == (10 if target is None else min(10, max(target + outside, head, asked)))


def test_units_for_work_linger_for_one_window() -> None:
    pool = Pool(CORES)
    pool.add_demand(+3, outside=True)
    pool.add_demand(-2, outside=True)
    pool.add_demand(+1, outside=False)
    pool.add_demand(-1, outside=False)
    peaks = []
    for _ in range(3):
        pool.next_window()
        peaks.append((pool.outside.peak, pool.demand.peak))
    assert peaks == [(3, 3), (1, 1), (1, 1)]


@pytest.mark.parametrize("outside", [False, True])
def test_demand_is_never_negative(outside: bool) -> None:
    with pytest.raises(AssertionError, match="demand is negative"):
        Pool(CORES).add_demand(-1, outside=outside)
