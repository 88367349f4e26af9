"""The live demo of model services, in its short form: real models, engines that are killed, and no wrong answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from treadle.testing.servers import clean_environment

LIMIT_S = 900


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.usefixtures("real_models")
def test_three_real_models_share_memory_for_two_and_killed_engines_cost_no_answer() -> None:
    command = [sys.executable, "-m", "treadle.cli.main", "demo", "--gpu", "--minutes", "1", "--seed", "1", "--json"]
    environ = clean_environment() | {"HOME": os.environ.get("HOME", "/")}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout)
    services = found["services"]
    assert set(services) == {"judge", "similarity", "reward"}
    assert {(one["wrong"], one["judged"] > 0) for one in services.values()} == {(0, True)}
    assert sum(one["kills"] for one in services.values()) >= 1
    assert found["engines"]["out_of_memory"] == 0
    assert max(found["peak_gb"], found["budget_gb"]) < found["together_gb"], "room for two"
    assert found["swaps"] >= 2
    assert found["succeeded"]
