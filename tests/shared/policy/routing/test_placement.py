"""Placement: sticky, least loaded, and a ring on which only the keys of a changed worker move."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from shared.policy.routing.model import ModelCall
from shared.policy.routing.placement import ConsistentHash, StickyLeastLoaded, WorkerLoad

names = st.lists(st.sampled_from([f"w{n}" for n in range(12)]), min_size=1, max_size=8, unique=True)


def load(worker: str, **fields: object) -> WorkerLoad:
    return WorkerLoad(worker, 0, None, 0, 0, None, doubtful=False)._replace(**fields)  # type: ignore[arg-type]


def call(trajectory: str) -> ModelCall:
    return ModelCall("c", "r", trajectory)


@given(names, st.sampled_from([f"w{n}" for n in range(12)]), st.integers(0, 50))
def test_a_usable_pinned_worker_stays_whatever_its_load(workers: list[str], pinned: str, calls: int) -> None:
    loads = {name: load(name, calls=calls if name == pinned else 0) for name in workers}
    for policy in (StickyLeastLoaded(), ring_of(workers)):
        chosen = policy.place(call("t"), 10, pinned, loads)
        assert chosen in workers
        assert chosen == pinned or pinned not in workers


@given(st.dictionaries(st.sampled_from([f"w{n}" for n in range(6)]), st.integers(0, 4), min_size=1))
def test_without_a_pin_the_worker_with_the_fewest_calls_is_chosen(calls: dict[str, int]) -> None:
    loads = {name: load(name, calls=count) for name, count in calls.items()}
    assert calls[StickyLeastLoaded().place(call("t"), 0, "", loads)] == min(calls.values())


def test_known_kv_capacities_count_before_calls_and_doubt_before_both() -> None:
    loads = {
        "full": load("full", kv_tokens=1000, tokens=900),
        "busy": load("busy", kv_tokens=1000, tokens=100, calls=9),
        "sick": load("sick", kv_tokens=1000, doubtful=True),
    }
    assert StickyLeastLoaded().place(call("t"), 50, "", loads) == "busy"
    assert StickyLeastLoaded().place(call("t"), 50, "", {"sick": loads["sick"]}) == "sick"


def test_caps_are_compared_by_their_share() -> None:
    loads = {"small": load("small", calls=3, most_calls=4), "big": load("big", calls=10, most_calls=100)}
    assert StickyLeastLoaded().place(call("t"), 0, "", loads) == "big"


def test_trajectories_with_equal_choices_spread() -> None:
    loads = {f"w{n}": load(f"w{n}") for n in range(4)}
    counts = Counter(StickyLeastLoaded().place(call(f"t{n}"), 0, "", loads) for n in range(2000))
    assert all(400 < counts[worker] < 600 for worker in loads)


def ring_of(workers: list[str]) -> ConsistentHash:
    ring = ConsistentHash()
    for name in workers:
        ring.add(name)
    return ring


def places(ring: ConsistentHash, workers: list[str]) -> dict[str, str]:
    loads = {name: load(name) for name in workers}
    return {f"t{n}": ring.place(call(f"t{n}"), 0, "", loads) for n in range(60)}


@given(names, st.sampled_from([f"w{n}" for n in range(12)]))
def test_only_trajectories_of_a_changed_worker_move_on_the_ring(workers: list[str], changed: str) -> None:
    others = [name for name in workers if name != changed]
    if not others:
        return
    ring = ring_of(others)
    before = places(ring, others)
    ring.add(changed)
    ring.add(changed)
    grown = places(ring, [*others, changed])
    assert all(grown[name] in (worker, changed) for name, worker in before.items())
    ring.remove(changed)
    assert places(ring, others) == before
    unusable = places(ring_of([*others, changed]), others)
    assert unusable == before, "a worker that is registered and not usable moves its own trajectories alone"


def test_the_ring_divides_trajectories_evenly() -> None:
    workers = [f"http://10.0.0.{n}:8000" for n in range(8)]
    ring, loads = ring_of(workers), {name: load(name) for name in workers}
    counts = Counter(ring.place(call(f"t{n}"), 0, "", loads) for n in range(8000))
    assert all(700 < counts[worker] < 1350 for worker in workers), counts
