"""Choices of chunks against an oracle that compares all; and what is kept until the next change is computed anew."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from shared.policy.model.chunks import Chunk, ServedModel
from shared.policy.resources.chunk_choice import BusyChunk
from shared.policy.resources.chunk_waits import free_first
from shared.policy.resources.chunks import GPUS, Chunks
from shared.policy.resources.engine_records import ENGINE_COLUMNS, MOST_SLOTS, USE_COLUMNS, floats, number_of
from shared.policy.resources.model_residency import ROUNDING_GB
from shared.policy.resources.resource import Use

CAPACITY = 8
SERVICES = ("a", "b", "c")


def report(chunks: Chunks, rng: random.Random) -> None:
    served = {}
    for name in SERVICES:
        if name in chunks.models.served and rng.random() < 0.3:
            served[name] = chunks.models.served[name]
            continue
        degree = rng.choice((1, 2, 4))
        resident = {Chunk(rng.randrange(0, CAPACITY, degree), degree) for _ in range(rng.randint(0, 2))}
        served[name] = ServedModel(
            (1, 2, 4), rng.choice((1, 3)), rng.choice((10.0, 30.0)), frozenset(resident),
            awake_gb_by={2: 20.0}, restore_s={1: 2.0},
            evict_s={1: rng.choice((0.5, 1.0, 4.0)), 2: 3.0}, asleep=asleep(rng),
            unusable=frozenset(asleep(rng) if rng.random() < 0.3 else ()),
        )  # fmt: skip
    bad = rng.sample(range(CAPACITY), rng.randint(0, 1))
    chunks.report(served, (80.0,) * rng.choice((CAPACITY, CAPACITY - 2)), bad)


def asleep(rng: random.Random) -> dict[Chunk, float]:
    degrees = [rng.choice((1, 1, 2, 4)) for _ in range(rng.randint(0, 4))]
    return {Chunk(rng.randrange(0, CAPACITY, degree), degree): rng.choice((0.0, 0.5, 1.0)) for degree in degrees}


def check(chunks: Chunks) -> None:
    models = chunks.models
    for gpu in range(len(models.device_gb)):
        held = [(name, chunk) for name in SERVICES for chunk in models.chunks_of(name) if gpu in chunk.gpus]
        used_gb = sum(models.served[name].gb(chunk.size) for name, chunk in held)
        assert math.isclose(models.free_gb(Chunk(gpu, 1)), models.device_gb[gpu] - used_gb, abs_tol=1e-9)
    table = {tuple(one) for one in models.table.values.reshape(-1, ENGINE_COLUMNS).tolist() if one[2]}
    assert table == {engine_row(chunks, name, chunk) for name in SERVICES for chunk in models.chunks_of(name)}
    assert len(table) == len(models.table)
    asked = [(units, name) for units in (1, 2, 4, 8) for name in ("", *SERVICES)]
    for units in (1, 2, 4, 8):
        for name in ("", *SERVICES, "unknown"):
            chunks.cache.choices.clear()
            assert chunks.fits(units, Use(name)) == (chunks.choose(units, name) is not None)
            check_possible(chunks, units, name)
    for units, name in asked:
        check_choice(chunks, units, name)
        for now, waited_s in ((0.0, 0.0), (20.0, 0.0), (60.0, 5.0), (90.0, 80.0)):
            check_wait(chunks, units, name, spares=False, now=now, waited_s=waited_s)
            if name:
                check_wait(chunks, units, name, spares=True, now=now, waited_s=waited_s)
    kept = state(chunks, asked)
    chunks.cache.clear()
    chunks._rows.clear()
    assert kept == state(chunks, asked)


def check_possible(chunks: Chunks, units: int, service: str) -> None:
    """Assert that a node could run what has a chunk without bad GPUs where its service may be."""
    one = chunks.models.served.get(service, ServedModel((1, 2, 4, 8)))
    served = not service or (service in chunks.models.served and units in one.degrees)
    good = [Chunk(first, units) for first in range(0, CAPACITY, units) if not chunks.bad & Chunk(first, units).mask]
    assert chunks.could_ever(units, Use(service)) == (served and any(chunk not in one.unusable for chunk in good))


def check_choice(chunks: Chunks, units: int, service: str) -> None:
    """Assert that a free chunk is the best of all by the laws of `Chunks`."""
    choice, models = chunks.choose(units, service), chunks.models
    if not service or (choice is not None and not choice.joins):
        return
    used = {gpu for chunk in chunks.busy for gpu in chunk.gpus}
    free = {gpu for gpu in range(CAPACITY) if gpu not in used and not chunks._away >> gpu & 1}
    largest, one = max(degree for each in models.served.values() for degree in each.degrees), models.served[service]

    def order(chunk: Chunk) -> tuple[object, ...]:
        blocks = [Chunk(chunk.first // size * size, size) for size in (1, 2, 4, 8) if units <= size <= largest]
        level = max([units, *(block.size for block in blocks if free.issuperset(block.gpus))])
        used_s, lacks = models.last_used_s(chunk), models.free_gb(chunk) < one.gb(units) - ROUNDING_GB
        if models.holds(chunk, service):
            return False, level, False, 0.0, False, used_s, chunk
        if chunk in one.asleep:
            swap_s = one.asleep[chunk] + (models.evict_s(service, chunk) if lacks else 0.0)
            return True, level, False, swap_s, lacks, used_s, chunk
        return True, level, True, 0.0, lacks, used_s, chunk

    every = [Chunk(first, units) for first in range(0, CAPACITY, units)]
    usable = [chunk for chunk in every if free.issuperset(chunk.gpus) and chunk not in one.unusable]
    if units not in one.degrees or units > chunks.free:
        usable = []
    assert (None if choice is None else choice[1:]) == min(map(order, usable), default=None)


def check_wait(chunks: Chunks, units: int, service: str, *, spares: bool, now: float, waited_s: float) -> None:
    """Assert that no chunk is free earlier than the one that a holder would wait for, by the law of `free_first`."""
    models, one, others = chunks.models, chunks.models.served.get(service), set(SERVICES) - {service}

    def users(chunk: Chunk) -> list[BusyChunk]:
        return [busy for at, busy in chunks.busy.items() if at.overlaps(chunk)]

    def free_s(chunk: Chunk) -> float:
        ends_s = [end_s for busy in users(chunk) for end_s in busy.holders.values()]
        ends_s += [2.0 * now - 0.8 * waited_s - end_s for end_s in ends_s]  # overdue for as long again
        if service and models.holds(chunk, service):
            turns = [(busy.service, busy.since_s + min(4 * busy.longest_s, 60.0)) for busy in users(chunk)]
            ends_s += [end_s for name, end_s in turns if name in others]
        elif service:
            swap_s = models.swap_s(chunk, service)
            for name, since_s, paid_s in models.leaving(chunk, service):
                ends_s += [since_s + min(max(5.0, swap_s, paid_s), 60.0)] if name in others else []
        return max(ends_s, default=-math.inf)

    def is_spare(chunk: Chunk) -> bool:
        if not users(chunk):
            return False
        if models.holds(chunk, service):
            return all(busy.service != service for busy in users(chunk))
        return not any(turn.service in SERVICES for turn in models.leaving(chunk, service))

    used = {gpu for chunk in chunks.busy for gpu in chunk.gpus}
    every = [Chunk(first, units) for first in range(0, CAPACITY, units)]
    usable = [
        chunk
        for chunk in every
        if not chunk.mask & chunks._away
        and (one is None or chunk not in one.unusable)
        and sum(gpu not in used for gpu in chunk.gpus) <= chunks.free
        and (not spares or is_spare(chunk))
    ]
    first_s, found = free_first(chunks, units, service, others, 5.0, now=now, waited_s=waited_s, spares=spares)
    assert (found in usable) == bool(usable)
    assert first_s == min(map(free_s, usable), default=math.inf)


def engine_row(chunks: Chunks, name: str, chunk: Chunk) -> tuple[float, ...]:
    one = chunks.models.served[name]
    since_s, used_s, _ = chunks.models._held[name][chunk]
    evict_s = one.evict_s.get(chunk.size, 0.0)
    return number_of(name), chunk.first, chunk.size, one.gb(chunk.size), evict_s, one.concurrency, since_s, used_s


def state(chunks: Chunks, asked: list[tuple[int, str]]) -> list[object]:
    records = chunks.engine_records()
    rows = [chunks.service_row(name) for name in SERVICES]
    return [
        chunks.free,
        *(chunks.choose(*each) for each in asked),
        *(free_first(chunks, *each, set(SERVICES) - {each[1]}, 5.0) for each in asked),
        records[:-1],
        records.values,
        rows,
    ]


@pytest.mark.parametrize("seed", range(60))
def test_what_is_kept_equals_what_is_computed_anew(seed: int) -> None:
    rng, chunks, held = random.Random(seed), Chunks(CAPACITY, GPUS), dict[str, int]()
    report(chunks, rng)
    for number in range(80):
        check(chunks)
        match rng.choice(("take", "take", "give back", "undo", "report", "share")):
            case "take":
                units, name = rng.choice((1, 2, 4)), f"h{number}"
                numbers = tuple(range(units)) if rng.random() < 0.1 else ()
                lasts_s = rng.choice((0.0, 2.0, 30.0))
                chunks.take(units, name, Use(rng.choice(SERVICES), float(number), numbers, lasts_s))
                held[name] = units
            case "give back" if held:
                name = rng.choice(list(held))
                chunks.give_back(held.pop(name), name)
            case "undo" if held and list(held)[-1] == f"h{number - 1}":
                name, units = held.popitem()
                chunks.undo(units, name)
            case "report":
                report(chunks, rng)
            case "share":
                chunks.share = rng.choice((None, 0, 3, CAPACITY))
    check(chunks)


def test_engines_on_no_chunk_of_the_node_are_left_out() -> None:
    """Compiled loops read the GPUs of each engine, and a place is aligned."""
    chunks, other = Chunks(CAPACITY, GPUS), [(1, 2), (8, 1), (4, 8), (-1, 1), (0, 3), (0, 16), (0, 0)]
    resident = frozenset(Chunk(*each) for each in [(6, 2), *other])
    chunks.report({"a": ServedModel((1, 2), 1, 10.0, resident)}, (80.0,) * CAPACITY)
    assert chunks.models.chunks_of("a") == {Chunk(6, 2)}
    assert chunks.engine_records().engines == 1


def test_records_list_the_uses_of_gpus() -> None:
    chunks, inf = Chunks(CAPACITY, GPUS), math.inf
    served = ServedModel((1, 2), 3, 10.0, frozenset({Chunk(2, 2)}), restore_s={2: 6.0})
    chunks.report({"a": served, "b": ServedModel((2,), 12, 10.0)}, (80.0,) * CAPACITY, [7])
    chunks.take(2, "first", Use(service="a", now=100.0, lasts_s=9.0))
    chunks.take(2, "second", Use(service="a", now=101.0, lasts_s=3.0))
    chunks.take(1, "kernel", Use(now=102.0, lasts_s=4.0, numbers=(5,)))
    for number in range(3):
        chunks.take(2, f"b{number}", Use(service="b", now=103.0, lasts_s=number, numbers=(0, 1)))
    records = chunks.engine_records()
    assert records[:-1] == (CAPACITY, 2, CAPACITY, 5)
    counts, gpus, rest = np.split(floats([records.values]), [5, 5 + 2 * CAPACITY])
    assert counts.tolist() == [CAPACITY, 2, 2, 4, 8]
    memory_gb, used_s = gpus.reshape(2, CAPACITY).tolist()
    assert memory_gb == [80.0] * CAPACITY
    assert used_s == [103.0, 103.0, 101.0, 101.0, -inf, 102.0, -inf, -inf]
    uses = rest[: 4 * USE_COLUMNS].reshape(4, USE_COLUMNS).tolist()
    rows = {name: chunks.models.table.row(name, chunk) for name, chunk in (("a", Chunk(2, 2)), ("b", Chunk(0, 2)))}
    none = [inf] * MOST_SLOTS
    assert uses == [
        [2, 2, rows["a"], 109.0, -inf, 104.0, 109.0, *none[3:]],
        [5, 1, -1, 106.0, *none],
        [0, 2, rows["b"], 105.0, *[-inf] * MOST_SLOTS],
        [7, 1, -1, inf, *none],
    ]
