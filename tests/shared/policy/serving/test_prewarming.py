"""Choice of chunks for model services that a batch will need."""

from __future__ import annotations

from random import Random

import pytest

from shared.policy.model.chunks import Chunk
from shared.policy.serving.model import InstanceId, State
from shared.policy.serving.node_view import InstanceView
from shared.policy.serving.prewarming import to_prewarm
from tests.shared.policy.serving.node_driver import on


def view(one: InstanceId, state: State = "resident", since_s: float = 0.0, *, running: int = 0) -> InstanceView:
    level = "asleep1" if state == "evicted" else None
    holders = tuple(map(str, range(running)))
    return InstanceView(one, state, since_s, "", None, level, holders, (), 1.0, 0.0, None, {})  # type: ignore[arg-type]


def test_an_empty_chunk_is_first_and_a_sleeping_engine_before_it() -> None:
    assert to_prewarm({"a": 1}, [view(on("b"))], {0, 1}, 2) == [on("a", 1)]
    assert to_prewarm({"a": 1}, [view(on("a", 1), "evicted")], {0, 1}, 2) == [on("a", 1)]


def test_an_idle_service_leaves_and_one_with_work_or_one_that_is_wanted_stays() -> None:
    assert to_prewarm({"a": 1}, [view(on("b"))], {0}, 1) == [on("a")]
    assert to_prewarm({"a": 1}, [view(on("b"), "running", running=1)], {0}, 1) == []
    assert to_prewarm({"a": 1, "b": 1}, [view(on("b"))], {0}, 1) == []


def test_nothing_is_restored_twice_nor_on_gpus_that_the_node_does_not_own() -> None:
    assert to_prewarm({"a": 1}, [view(on("a"), "loading")], {0, 1}, 2) == []
    assert to_prewarm({"a": 1}, [], {0, 1}, 0) == []
    assert to_prewarm({"a": 2}, [], {0, 2}, 2) == [], "no aligned chunk of two"
    assert to_prewarm({"a": 1}, [view(on("a"), "quarantined")], {0}, 1) == []


def test_the_chunk_that_was_changed_least_recently_is_taken() -> None:
    views = [view(on("b", 0), since_s=9.0), view(on("c", 1), since_s=3.0)]
    assert to_prewarm({"a": 1}, views, {0, 1}, 2) == [on("a", 1)]


@pytest.mark.parametrize("seed", range(200))
def test_the_laws_hold_for_random_nodes(seed: int) -> None:
    rng = Random(seed)
    views, free = list[InstanceView](), set(range(8))
    for name in "bcdef":
        size = rng.choice([1, 2, 4])
        chunks = [one for one in (Chunk(first, size) for first in range(0, 8, size)) if free.issuperset(one.gpus)]
        if chunks:
            chunk = rng.choice(chunks)
            free -= set(chunk.gpus)
            state: State = rng.choice(["resident", "running", "evicted", "cold", "quarantined", "restoring"])
            running = 1 if state == "running" else 0
            views.append(view(InstanceId(name, chunk), state, rng.random(), running=running))
    wanted = {name: rng.choice([1, 2, 4, 8]) for name in rng.sample("abcdefg", 3)}
    usable = {gpu for gpu in range(8) if rng.random() < 0.8}
    most, chosen = rng.randint(0, 8), to_prewarm(wanted, views, usable, 8)
    ready = {one.instance.service for one in views if one.state in ("resident", "running", "restoring")}
    assert not {one.service for one in chosen} & ready
    gpus = [gpu for one in chosen for gpu in one.chunk.gpus]
    assert len(gpus) == len(set(gpus))
    assert set(gpus) <= usable
    for one in chosen:
        assert (one.chunk.size, one.chunk.first % one.chunk.size) == (wanted[one.service], 0)
    for other in views:
        kept = other.running or (other.instance.service in wanted and other.instance.service in ready)
        assert not kept or not set(other.instance.chunk.gpus) & set(gpus)
    assert sum(one.chunk.size for one in to_prewarm(wanted, views, usable, most)) <= most
