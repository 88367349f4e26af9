"""Trajectories with the lengths and the calls of recorded agents, and the thinking times of other recorded ones.

`RECORDED` counts the calls of 250 ReAct trajectories on HotpotQA (noahshinn/reflexion, MIT). `s`: Search. `p`: Lookup,
which reads a page. They have no times: a thought lasts as long as a generation of the recorded agents of the other
replay (`assumptions.TrainingStep`). tests/treadle/lab/replay/test_search_workload.py compares the counts with the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from treadle.lab.replay.search.assumptions import PROVIDER, TRAINER, Provider, TrainingStep
from treadle.lab.replay.search.trace import PAGES, SEARCH, AgentCall, SearchBatch, SearchTrajectory

RECORDED: Final[Mapping[str, int]] = MappingProxyType(
    {
        "ss": 116, "sss": 32, "ssssss": 26, "ssss": 16, "s": 10, "spssss": 6, "sssss": 6, "spss": 5, "sp": 4,
        "sspsss": 4, "spsss": 3, "spp": 2, "sps": 2, "spspsp": 2, "spspss": 2, "ssps": 2, "sspss": 2, "sppp": 1,
        "sppppp": 1, "sppsss": 1, "spssp": 1, "spsssp": 1, "ssp": 1, "sspsps": 1, "ssspp": 1, "sssppp": 1,
        "ssssps": 1,
    }
)  # fmt: skip
"""Calls of a trajectory, in order -> recorded trajectories with them."""
CALLS: Final[Mapping[str, str]] = MappingProxyType({"s": SEARCH, "p": PAGES})


def generate(
    rng: np.random.Generator, trainer: TrainingStep = TRAINER, provider: Provider = PROVIDER, questions: int = 1
) -> SearchBatch:
    """Return the trajectories of a step.

    Args:
        rng: source of all draws.
        trainer: size and thinking times.
        provider: spread of the latencies.
        questions: recorded trajectories that one trajectory consists of.
    """
    patterns, counts = list(RECORDED), np.array(list(RECORDED.values()), float)
    drawn = rng.choice(len(patterns), (trainer.batch, questions), p=counts / counts.sum())
    return tuple(
        _trajectory(rng, f"t{number}", "".join(patterns[one] for one in row), trainer, provider)
        for number, row in enumerate(drawn.tolist())
    )


def _trajectory(
    rng: np.random.Generator, name: str, pattern: str, trainer: TrainingStep, provider: Provider
) -> SearchTrajectory:
    thinks = (trainer.think_s * np.exp(rng.normal(0.0, trainer.think_spread, len(pattern) + 1))).tolist()
    works = np.exp(rng.normal(0.0, provider.latency_spread, len(pattern))).tolist()
    calls = (AgentCall(thinks[at], CALLS[one], works[at]) for at, one in enumerate(pattern))
    return SearchTrajectory(name, tuple(calls), thinks[-1])


def expected_calls() -> float:
    """Return the mean number of calls of a recorded trajectory."""
    return math.fsum(len(pattern) * count for pattern, count in RECORDED.items()) / sum(RECORDED.values())
