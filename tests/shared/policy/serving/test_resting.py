"""Engines at rest: what is counted of them, also of stopped ones that keep memory."""

from __future__ import annotations

import random
from typing import Any

import pytest

from shared.policy.model.chunks import Chunk
from shared.policy.serving.instance import EngineInstance
from shared.policy.serving.model import InstanceId, ModelServiceSpec
from shared.policy.serving.resting import RestingEngines

SPEC = ModelServiceSpec("s", 10.0, ("asleep1", "cold"), (1, 2, 4), {"asleep1": 1.0}, {"asleep1": 10.0})
ASLEEP: dict[str, Any] = {"place": "asleep1", "claim": "asleep1", "host": "asleep1"}
STOPPED: dict[str, Any] = {"left": "asleep1"}
"""A given engine that sleeps: stopped for us."""


@pytest.mark.parametrize("seed", range(40))
def test_the_gpus_that_engines_join_are_those_of_the_engines_that_rest(seed: int) -> None:
    rng, resting = random.Random(seed), RestingEngines([{} for _ in range(8)])
    at_rest: dict[InstanceId, EngineInstance] = {}
    for number in range(200):
        if at_rest and rng.random() < 0.5:
            resting.remove(at_rest.pop(rng.choice(list(at_rest))))
        else:
            size = rng.choice((1, 2, 4, 8))
            name = InstanceId(f"s{number}", Chunk(rng.randrange(0, 8, size), size))
            one = at_rest[name] = EngineInstance(name, SPEC, **rng.choice((ASLEEP, STOPPED)))
            resting.add(one)
        for gpu in range(8):
            joined = 0
            for one in at_rest.values():
                if one.claim != "cold" and one.id.chunk.size > 1 and gpu in one.id.chunk.gpus:
                    joined |= one.id.chunk.mask
            assert resting.joined(gpu) == joined
            used_gb = sum(one.device_gb for one in at_rest.values() if gpu in one.id.chunk.gpus)
            assert resting.device_gb(gpu) == pytest.approx(used_gb)
