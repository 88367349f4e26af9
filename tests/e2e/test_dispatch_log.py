"""The log of a live leader under load, read by `treadle replay dispatch`."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.replicas import Mesh, running_mesh
from tests.e2e.samples import WORKFLOW, mixed
from tests.e2e.trainer import trainer_at
from treadle.testing.servers import running_valkey

SIZE = 300


def replayed(path: Path) -> tuple[int, dict[str, Any]]:
    command = [str(Path(sys.executable).parent / "treadle"), "replay", "dispatch", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


async def grade(mesh: Mesh) -> None:
    async with trainer_at(mesh.proxies[0].url) as trainer:
        await trainer.declare("campaign", WORKFLOW)
        batch = await trainer.open("campaign", "b", SIZE)
        await trainer.send(batch, mixed(SIZE))
        assert len(await trainer.follow(batch)) == SIZE


@pytest.mark.timeout(240)
def test_the_log_of_a_live_mesh_under_load_replays_identically(stack_home: Path, tmp_path: Path) -> None:
    with (
        running_valkey(stack_home) as url,
        running_mesh(url, proxies=1, managers=2, cores=1, PROXY_STIMULUS_LOGS=str(tmp_path)) as mesh,
    ):
        asyncio.run(grade(mesh))
    (path,) = tmp_path.iterdir()
    status, document = replayed(path)
    assert (status, document["same"], document["first_difference"]) == (0, True, None)
    assert sum(n for name, n in document["commands"].items() if name.startswith("AnswerAction")) == SIZE
    assert document["stimuli"]["AttemptsEnded"] > 0
    cut = tmp_path / "cut.log"
    cut.write_bytes(path.read_bytes()[:-5])
    status, document = replayed(cut)
    assert (status, document["same"], document["torn_bytes"] > 0) == (0, True, True)
