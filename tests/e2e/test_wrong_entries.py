"""A file of model services with wrong entries: the GPU manager of a real mesh starts with the right ones."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.e2e.test_model_services import check, entry, judge
from treadle.client.asynchronous import AsyncTreadle
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

WAIT_S = 90
SOON_S = 10
"""Much less than the budget of an action, which is `WAIT_S`."""
TYPO = "backend: must be one of process, sglang, torch, vllm, not 'tgi'"


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with temporary_home() as root, TemporaryDirectory() as folder:
        plain = Path(folder) / "server.sh"
        plain.write_text("#!/bin/sh\nsleep 600\n")
        right = entry("right")
        wrong = {
            "typo": {**right, "backend": "tgi"},
            "degrees": {**right, "degrees": [3]},
            "no-command": {name: value for name, value in right.items() if name != "command"},
            "not-executable": {**right, "command": [str(plain), "--port", "{port}"]},
            "a number": 1,
        }
        declared = Path(folder) / "services.json"
        declared.write_text(json.dumps({**wrong, "right": right}))
        environ = {"GPU_MANAGER_DEVICES": '[{"memory_gb": 24}]', "GPU_MANAGER_SERVICES": str(declared)}
        with running_stack(root, services="proxy,scaling_planner,gpu_manager", environ=environ) as running:
            yield running


async def test_the_right_entries_work_and_the_wrong_ones_are_shown_with_what_to_write(stack: RunningStack) -> None:
    async with AsyncTreadle(stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        check(await judge(client, "right", 3), "right", 3)
        views = {one.name: one for one in (await client.model_services.overview()).services}
    assert views.keys() == {"right", "typo", "degrees", "no-command", "not-executable", "a_number"}
    assert views.pop("right").problems == []
    assert {one.state for one in views.values()} == {"quarantined"}
    assert views["typo"].why.endswith(TYPO)
    assert "degrees: [3] should be different numbers out of 1, 2, 4 and 8" in views["degrees"].why
    assert 'it has no engine; write "command": ["python3", ' in views["no-command"].why
    assert "that this account can execute" in views["not-executable"].why
    line = [sys.executable, "-m", "treadle.cli.main", "services", "ls", "--url", stack.urls["proxy"]]
    listed = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True, check=True)
    rows = listed.stdout.splitlines()
    (number,) = [number for number, row in enumerate(rows) if row.startswith("typo")]
    assert "quarantined" in rows[number]
    assert TYPO in rows[number + 1]


async def test_an_action_of_a_wrong_entry_is_answered_at_once(stack: RunningStack) -> None:
    async with AsyncTreadle(stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        for service in ("typo", "not-executable"):
            began_s = time.monotonic()
            answer = await client.run("model.judge", {
                "service": service, "messages": [{"role": "user", "content": "x"}], "score": {"regex": "([0-9])"},
            }, budget_s=WAIT_S)  # fmt: skip
            assert time.monotonic() - began_s < SOON_S
            assert (answer.ended, answer.mask) == ("refused", True)
            assert f"cannot use the model service '{service}': " in answer.reason
        check(await judge(client, "right", 4), "right", 4)


async def test_the_manager_starts_again_after_a_crash(stack: RunningStack) -> None:
    pid = stack.kill("gpu_manager")
    await asyncio.to_thread(stack.await_healthy, "gpu_manager", other_than=pid)
    async with AsyncTreadle(stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        check(await judge(client, "right", 5), "right", 5)
