"""`docs/vllm-in-five-minutes.md` as it is printed: its entries are read, and its commands started.

`vllm` and `sglang.launch_server` are stand-ins that reject options that the page should not have: a real model on the
CPU behind vLLM's sleep contract, and the conformance server of SGLang.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from shared.model_services.entries import ServiceEntry, read_entries
from treadle.client.asynchronous import AsyncTreadle
from treadle.mesh import mesh_command
from treadle.testing.llamacpp import gemma_weights
from treadle.testing.servers import clean_environment, temporary_home
from treadle.testing.stack import RunningStack, running_stack

PAGE = Path(__file__).parents[2] / "docs" / "vllm-in-five-minutes.md"
SGLANG = Path(__file__).parents[1] / "services" / "gpu_manager" / "backends" / "sglang_server.py"
WAIT_S = 240
VLLM = """#!{python}
import os, sys
from argparse import ArgumentParser
parser = ArgumentParser(allow_abbrev=False)
parser.add_argument("serve", choices=["serve"])
parser.add_argument("model", choices=["Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct"])
parser.add_argument("--port", required=True)
parser.add_argument("--host", choices=["127.0.0.1"], required=True)
parser.add_argument("--enable-sleep-mode", action="store_true", required=True)
parser.add_argument("--tensor-parallel-size", type=int, choices=[1])
parser.add_argument("--gpu-memory-utilization", type=float)
options = parser.parse_args()
command = {front!r} + ["--port", options.port, "--served-model-name", options.model, "--enable-sleep-mode"]
os.execv(command[0], command)
"""
LAUNCH_SERVER = """
import os, sys
from argparse import ArgumentParser
parser = ArgumentParser(allow_abbrev=False)
parser.add_argument("--model-path", choices=["Qwen/Qwen3-8B"], required=True)
parser.add_argument("--port", required=True)
parser.add_argument("--host", choices=["127.0.0.1"], required=True)
parser.add_argument("--tp-size", type=int, choices=[1])
parser.add_argument("--mem-fraction-static", type=float)
parser.add_argument("--enable-memory-saver", action="store_true", required=True)
parser.add_argument("--enable-weights-cpu-backup", action="store_true", required=True)
options = parser.parse_args()
os.execv({python!r}, [{python!r}, {server!r}, "--port", options.port])
"""


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of a language on the page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def entries() -> dict[str, ServiceEntry]:
    return {name: entry for block in blocks("json") for name, entry in read_entries(block.encode()).items()}


def test_the_entries_can_be_used() -> None:
    found = entries()
    assert set(found) == {"judge-a", "judge-b", "judge-c", "judge-d"}
    assert all(entry.canary is not None for entry in found.values())
    for name in ("judge-a", "judge-b"):
        command = found[name].command_of(1) or []
        assert {"--enable-sleep-mode", "127.0.0.1", "{port}", "{model}"} <= set(command)
        assert found[name].env == {"VLLM_SERVER_DEV_MODE": "1"}
    assert {"--enable-memory-saver", "--enable-weights-cpu-backup"} <= set(found["judge-c"].command_of(1) or [])
    assert found["judge-d"].url_of(1) == "http://127.0.0.1:8001"


def test_two_judges_need_more_than_one_gpu_and_one_fits_beside_a_sleeping_one() -> None:
    one, other = entries()["judge-a"], entries()["judge-b"]
    assert one.awake_gb(1) + other.asleep_gb(1) <= 80 < one.awake_gb(1) + other.awake_gb(1)


@pytest.mark.parametrize(("command", "option"), [("up", "--detach"), ("demo", "--gpu"), ("services", "watch")])
def test_the_commands_of_the_page_exist(command: str, option: str) -> None:
    assert re.search(rf"treadle {command} .*{option}", PAGE.read_text())
    help_of = [sys.executable, "-m", "treadle.cli.main", command, "--help"]
    assert option in subprocess.run(help_of, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    """A mesh with the entries of the page, and one described GPU of 80 GB."""
    with temporary_home() as root, TemporaryDirectory() as name:
        folder = Path(name)
        front = list(mesh_command("treadle.testing.sleeping_vllm", str(gemma_weights())))
        vllm = folder / "bin" / "vllm"
        vllm.parent.mkdir()
        vllm.write_text(VLLM.format(python=sys.executable, front=front))
        vllm.chmod(0o755)
        package = folder / "python" / "sglang"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "launch_server.py").write_text(LAUNCH_SERVER.format(python=sys.executable, server=str(SGLANG)))
        found: dict[str, Any] = {}
        for block in blocks("json"):
            found |= json.loads(block)
        del found["judge-d"]  # it runs already, and nothing runs at that address
        (folder / "services.json").write_text(json.dumps(found))
        environ = {
            "GPU_MANAGER_SERVICES": str(folder / "services.json"),
            "GPU_MANAGER_DEVICES": '[{"memory_gb": 80}]',
            "GPU_MANAGER_HOST_MEMORY_GB": "64",
            "PATH": f"{vllm.parent}:{clean_environment()['PATH']}",
            "PYTHONPATH": str(folder / "python"),
        }
        with running_stack(root, services="proxy,scaling_planner,gpu_manager", environ=environ) as running:
            yield running


def printed_request(stack: RunningStack) -> list[str]:
    """Return the page's call by curl, at the port of the stack."""
    (command,) = (block for block in blocks("bash") if block.startswith("curl"))
    return [part.replace("http://127.0.0.1:8700", stack.urls["proxy"]) for part in shlex.split(command)]


@pytest.mark.slow
async def test_the_pages_request_is_answered_and_the_judges_take_turns(stack: RunningStack) -> None:
    command = printed_request(stack)
    environ = {**os.environ, "no_proxy": "127.0.0.1"}
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=True, timeout=WAIT_S, env=environ
    )
    answer = json.loads(done.stdout)
    assert (answer["ended"], "mask" in answer) == ("ok", False), answer
    assert 0 <= answer["score"] <= 10

    body = json.loads(command[-1])
    async with AsyncTreadle(stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        for service in ("judge-b", "judge-a", "judge-b"):
            other = await client.run(body["kind"], {**body["params"], "service": service}, timeout_s=120)
            assert (other.ended, other.score) == ("ok", answer["score"]), "the stand-in is the same model"
        rule = {"score": {"regex": "([0-9]+)"}, "service": "judge-c"}
        assert (await client.run(body["kind"], {**body["params"], **rule}, timeout_s=120)).score == 4
        views = {view.name: view for view in await client.model_services.all()}
    states = {name: view.engines[0].state for name, view in views.items() if view.engines}
    assert states["judge-c"] in ("resident", "running")
    assert states["judge-a"] == states["judge-b"] == "evicted", "one of them is awake at a time"
    assert {view.engines[0].level for name, view in views.items() if name != "judge-c"} <= {"asleep1", "asleep2"}
