"""What a node's chunks keep until their next change is what they would compute anew."""

from __future__ import annotations

import math
import random

import pytest

from shared.policy.model.chunks import Chunk, ServedModel
from shared.policy.resources.chunks import GPUS, Chunks
from shared.policy.resources.resource import Use

CAPACITY = 8
SERVICES = ("a", "b", "c")


def report(chunks: Chunks, rng: random.Random) -> None:
    served = {}
    for name in SERVICES:
        degree = rng.choice((1, 2, 4))
        resident = {Chunk(rng.randrange(0, CAPACITY, degree), degree) for _ in range(rng.randint(0, 2))}
        served[name] = ServedModel(
            (1, 2, 4), rng.choice((1, 3)), rng.choice((10.0, 30.0)), frozenset(resident),
            awake_gb_by={2: 20.0}, restore_s={1: 2.0},
            evict_s={1: rng.choice((0.5, 1.0, 4.0)), 2: 3.0},
        )  # fmt: skip
    bad = rng.sample(range(CAPACITY), rng.randint(0, 1))
    chunks.report(served, (80.0,) * rng.choice((CAPACITY, CAPACITY - 2)), bad)


def check(chunks: Chunks) -> None:
    models = chunks.models
    for gpu in range(len(models.device_gb)):
        held = [(name, chunk) for name in SERVICES for chunk in models.chunks_of(name) if gpu in chunk.gpus]
        used_gb = sum(models.served[name].gb(chunk.size) for name, chunk in held)
        assert math.isclose(models.free_gb(Chunk(gpu, 1)), models.device_gb[gpu] - used_gb, abs_tol=1e-9)
    asked = [(units, name) for units in (1, 2, 4, 8) for name in ("", *SERVICES)]
    kept = state(chunks, asked)
    chunks._cache.clear()
    chunks._rows.clear()
    assert kept == state(chunks, asked)


def state(chunks: Chunks, asked: list[tuple[int, str]]) -> list[object]:
    records = chunks.engine_records()
    rows = [chunks.service_row(name).tolist() for name in SERVICES]
    return [
        chunks.free,
        *(chunks.choose(*each) for each in asked),
        records.gpus,
        records.engines,
        records.values.tolist(),
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
                chunks.take(units, name, Use(service=rng.choice(SERVICES), now=float(number), numbers=numbers))
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
