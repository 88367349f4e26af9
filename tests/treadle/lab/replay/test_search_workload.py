"""Generated search agents: the recorded calls, and stated thinking times."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from treadle.lab.replay.search.assumptions import TRAINER
from treadle.lab.replay.search.trace import PAGES, SEARCH
from treadle.lab.replay.search.workload import CALLS, RECORDED, expected_calls, generate

RECORDINGS = Path(os.environ.get("TREADLE_DATA", "../shared/data")) / "agents/hotpotqa_react_search.jsonl.gz"
LETTERS = {"Search": "s", "Lookup": "p", "Finish": ""}


@pytest.mark.data
@pytest.mark.skipif(not RECORDINGS.exists(), reason=f"no {RECORDINGS}: set TREADLE_DATA")
def test_the_counts_are_those_of_the_recordings() -> None:
    with gzip.open(RECORDINGS, "rt") as lines:
        steps = [json.loads(line)["steps"] for line in lines]
    assert Counter("".join(LETTERS[step["action"]] for step in one) for one in steps) == RECORDED


def test_generated_trajectories_have_the_recorded_lengths_and_calls() -> None:
    batch = generate(np.random.default_rng(1), replace(TRAINER, batch=20_000))
    names = {"s": SEARCH, "p": PAGES}
    assert names == CALLS
    drawn = Counter(tuple(call.upstream for call in one.calls) for one in batch)
    for pattern, count in RECORDED.items():
        assert drawn[tuple(names[letter] for letter in pattern)] / 20_000 == pytest.approx(count / 250, abs=0.012)
    assert np.mean([len(one.calls) for one in batch]) == pytest.approx(798 / 250, rel=0.02)
    assert expected_calls() == 798 / 250


def test_thoughts_and_latencies_have_the_stated_medians() -> None:
    batch = generate(np.random.default_rng(1), replace(TRAINER, batch=5000))
    thinks_s = [call.think_s for one in batch for call in one.calls] + [one.last_s for one in batch]
    assert np.median(thinks_s) == pytest.approx(6.1, rel=0.03)
    assert np.quantile(thinks_s, 0.9) == pytest.approx(18.6, rel=0.04)
    assert np.median([call.work for one in batch for call in one.calls]) == pytest.approx(1.0, rel=0.03)


def test_a_trajectory_of_several_questions_has_the_calls_of_all() -> None:
    batch = generate(np.random.default_rng(1), replace(TRAINER, batch=2000), questions=4)
    assert np.mean([len(one.calls) for one in batch]) == pytest.approx(4 * 798 / 250, rel=0.02)
    assert len({one.name for one in batch}) == 2000
