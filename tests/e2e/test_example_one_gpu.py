"""`examples/one-gpu`: a judge and two reward models, with small models on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from shared.model_services.entries import read_entries
from treadle.testing.servers import clean_environment, temporary_home
from treadle.testing.stack import running_stack

EXAMPLE = Path(__file__).parents[2] / "examples" / "one-gpu"
GPU_GB = 80
LIMIT_S = 300


def test_any_two_of_its_services_fit_on_one_gpu_beside_the_sleeping_third() -> None:
    entries = read_entries((EXAMPLE / "services.json").read_bytes())
    assert set(entries) == {"judge", "reward-a", "reward-b"}
    awake = {name: entry.awake_gb(1) for name, entry in entries.items()}
    for pair in combinations(entries, 2):
        third = next(entry for name, entry in entries.items() if name not in pair)
        assert sum(awake[name] for name in pair) + third.asleep_gb(1) <= GPU_GB
    assert sum(awake.values()) > GPU_GB


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S * 2)
@pytest.mark.usefixtures("real_models")
def test_every_sample_gets_three_scores_with_small_models() -> None:
    with temporary_home() as root, TemporaryDirectory() as name:
        folder = Path(name) / "models"
        environ = clean_environment()
        written = subprocess.run(
            [sys.executable, str(EXAMPLE / "on_the_cpu.py"), str(folder)],
            env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=True,
        )  # fmt: skip
        services = Path(written.stdout.strip())
        assert services == folder / "services.json"
        settings = {"GPU_MANAGER_SERVICES": str(services), "GPU_MANAGER_DEVICES": '[{"memory_gb": 1.25}]'}
        with running_stack(root, services="proxy,scaling_planner,gpu_manager", environ=settings) as stack:
            scored = subprocess.run(
                [sys.executable, str(EXAMPLE / "score.py"), str(EXAMPLE / "samples.jsonl")],
                env=environ | {"TREADLE_URL": stack.urls["proxy"]},
                capture_output=True, text=True, timeout=LIMIT_S, check=True,
            )  # fmt: skip
    lines = [json.loads(line) for line in scored.stdout.splitlines()]
    assert [line["id"] for line in lines] == ["looms-right", "looms-wrong", "boats-right", "boats-wrong"]
    for line in lines:
        scores = line["scores"]
        assert not line["mask"], line
        assert line["reward"] == pytest.approx(0.5 * scores["judge"] + 0.25 * (scores["reward-a"] + scores["reward-b"]))
    assert all(len({line["scores"][name] for line in lines}) == 4 for name in ("reward-a", "reward-b"))
    assert lines[0]["scores"]["reward-a"] != lines[0]["scores"]["reward-b"], "two models"
