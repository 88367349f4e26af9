"""Published agents, unmodified, in sandboxes without network. A scripted model answers their calls.

The model of each is reached at the loopback address of its own environment, through a whole stack.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from shared.messages.environments import LOCAL
from tests.e2e.agent_routes import ROUTES
from tests.e2e.episodes import Json, Trainer
from treadle.client.answers import RecordedCall, TrainingRow
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.requests import EnvironmentSpec, TrajectoryRequest
from treadle.testing.scripted_engine import MODEL, ScriptedEngine, running_scripted_engine
from treadle.testing.servers import clean_environment, temporary_home
from treadle.testing.small_image import small_image
from treadle.testing.stack import RunningStack, running_stack

AGENTS = Path(__file__).parents[2] / ".clients" / "agents"
VENV = AGENTS / "venv"
NOT_NEEDED = re.compile(r"/(pyarrow|pandas|numpy|numpy.libs|pip|setuptools|botocore|tests|__pycache__)(/|$)")
"""Parts of the environment of mini-swe-agent that it does not import, two thirds of its size."""
CLAUDE = AGENTS / "node/node_modules/@anthropic-ai/claude-code-linux-x64/claude"
CODEX = AGENTS / "node/node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"
SCRIPT = (
    "cat fact.py",
    "sed -i 's/range(n)/range(1, n + 1)/' fact.py",
    "python3 -c 'from fact import fact; print(fact(5))' > out.txt",
)
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
TREADLE = (sys.executable, "-m", "treadle.cli.main")
BROKEN = "def fact(n):\n    product = 1\n    for k in range(n):\n        product *= k\n    return product\n"
TASK = "Repair fact.py: fact(5) should be 120."


def need_agents() -> None:
    if not AGENTS.exists():
        pytest.skip("scripts/client-tools has not been run")
    if AGENTS.is_relative_to("/tmp"):
        pytest.skip("a sandbox has a /tmp of its own, so agents below it cannot be shown to programs")


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    need_agents()
    settings = {"CPU_MANAGER_VISIBLE_PATHS": str(AGENTS)}
    with temporary_home() as root, running_stack(root, environ=settings) as running:
        yield running


@dataclass
class Episode:
    """One trajectory whose environment has the broken function."""

    client: AsyncTreadle
    trainer: Trainer
    trajectory: str
    engine: ScriptedEngine

    async def run(self, argv: Sequence[str], env: Mapping[str, str], files: Mapping[str, str] | None = None) -> Json:
        """Run an agent to its end."""
        for path, content in {"fact.py": BROKEN, **(files or {})}.items():
            assert (await self.trainer.act(self.trajectory, "env.write", {"path": path, "content": content}))["passed"]
        params = {"argv": list(argv), "env": dict(env)}
        return await self.trainer.act(self.trajectory, "env.exec", params, timeout_s=240.0)

    async def repaired(self) -> bool:
        found = await self.trainer.bash(self.trajectory, "cat out.txt")
        return bool(found["output"]["output"] == "120\n")

    async def rows(self) -> list[TrainingRow]:
        return await self.client.trajectories.rows(self.trajectory)

    async def calls(self) -> list[RecordedCall]:
        return await self.client.trajectories.model_calls(self.trajectory)


@asynccontextmanager
async def episode(stack: RunningStack, *script: str, image: str = LOCAL) -> AsyncIterator[Episode]:
    workers = stack.urls["trajectory_router"] + "/workers"
    async with (
        aiohttp.ClientSession(stack.urls["proxy"]) as http,
        running_scripted_engine(script, routes=ROUTES) as engine,
        AsyncTreadle(stack.urls["proxy"]) as client,
    ):
        async with http.post(workers, json={"url": engine.url}) as answer:
            worker = (await answer.json())["worker_id"]
        environment = EnvironmentSpec(image=image, model=True, memory_mb=2048)
        opened = await client.trajectories.open(TrajectoryRequest(environment=environment, record="tokens"))
        trainer, trajectory = Trainer(http), opened.id
        yield Episode(client, trainer, trajectory, engine)
        await trainer.close(trajectory)
        async with http.delete(f"{workers}/{worker}") as answer:
            assert answer.status < 300


async def repairs_with_mini(one: Episode) -> None:
    """Run mini-swe-agent. Its whole episode is one row of what the engine has sampled."""
    argv = [str(VENV / "bin" / "mini"), "--model", f"openai/{MODEL}", "--yolo", "--exit-immediately", "--task", TASK]
    env = {"MSWEA_COST_TRACKING": "ignore_errors", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "MSWEA_CONFIGURED": "true"}
    done = await one.run(argv, env)
    assert done["passed"], done["output"]
    assert await one.repaired(), done
    (row,) = await one.rows()
    calls = one.engine.log
    assert len(calls) == len(SCRIPT) + 1
    assert row.token_ids == calls[-1].prompt + calls[-1].output
    assert row.masked == []
    mask, logprobs = list[int](), list[float]()
    for call in calls:
        mask += [0] * (len(call.prompt) - len(mask)) + [1] * len(call.output)
        logprobs += [0.0] * (len(call.prompt) - len(logprobs)) + call.logprobs
    assert row.loss_mask == mask
    assert row.logprobs == pytest.approx(logprobs, rel=1e-6)


async def test_mini_swe_agent(stack: RunningStack) -> None:
    async with episode(stack, *SCRIPT, SUBMIT) as one:
        await repairs_with_mini(one)


@pytest.mark.docker
@pytest.mark.usefixtures("docker")
async def test_mini_swe_agent_in_a_container_without_network(stack: RunningStack) -> None:
    with small_image(f"treadletest-agents-{os.getpid()}:mini", python=True, folder=VENV, without=NOT_NEEDED) as image:
        async with episode(stack, *SCRIPT, SUBMIT, image=image) as one:
            await repairs_with_mini(one)


async def test_claude_code(stack: RunningStack) -> None:
    async with episode(stack, *SCRIPT) as one:
        argv = [
            str(CLAUDE),
            "-p",
            TASK,
            "--bare",
            "--tools",
            "Bash",
            "--allowedTools",
            "Bash",
            "--system-prompt",
            "Act.",
        ]
        env = {"ANTHROPIC_MODEL": MODEL, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_PROMPT_CACHING": "1"}
        done = await one.run(argv, env)
        assert done["passed"], done["output"]
        assert await one.repaired(), done
        calls = await one.calls()
        assert {(call.status, call.route) for call in calls} == {("no-ids", "/v1/messages")}
        assert len(calls) >= len(SCRIPT) + 1
        assert await one.rows() == []


async def test_codex(stack: RunningStack) -> None:
    config = f"""
model = "{MODEL}"
model_provider = "treadle"
[model_providers.treadle]
name = "treadle"
base_url = "http://127.0.0.1:14747/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""
    async with episode(stack, *SCRIPT) as one:
        argv = [str(CODEX), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK]
        done = await one.run(argv, {"CODEX_HOME": "/tmp/codex"}, {"/tmp/codex/config.toml": config})
        assert done["passed"], done["output"]
        assert await one.repaired(), done
        calls = await one.calls()
        assert {(call.status, call.route) for call in calls} == {("no-ids", "/v1/responses")}
        assert len(calls) == len(SCRIPT) + 1


def test_the_demo_of_an_agent_ends_with_rows_and_a_reward() -> None:
    """`treadle demo --agent` on a stack of its own, as a user starts it."""
    need_agents()
    with temporary_home() as root:
        environ = {**clean_environment(), "TREADLE_HOME": str(root), "PROXY_PORT": "0"}
        try:
            command = [*TREADLE, "demo", "--agent", "--mini", str(VENV / "bin" / "mini"), "--json"]
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=180, check=False)
            assert done.returncode == 0, done.stderr
            found = json.loads(done.stdout)
        finally:
            subprocess.run([*TREADLE, "down"], env=environ, capture_output=True, timeout=60, check=True)
    (row,) = found["rows"]
    assert (found["reward"], row["reward"], row["trajectory"]) == (1.0, 1.0, found["trajectory"])
    assert found["graded"]["trajectory"] == found["trajectory"]
    assert row["calls"] == [call["call"] for call in found["calls"]]
    assert (len(row["loss_mask"]), sum(row["loss_mask"])) == (
        len(row["token_ids"]),
        sum(call["output_tokens"] for call in found["calls"]),
    )
    assert found["agent"]["stages"][0]["parked_s"] > 0
    check_trace(found)


def check_trace(found: Json) -> None:
    """One trace has the agent, its model calls below it, and its grading after it."""
    spans = [one for resource in found["trace"]["resourceSpans"] for one in resource["scopeSpans"][0]["spans"]]
    assert {one["traceId"] for one in spans} == {found["trajectory"].removeprefix("t").rjust(32, "0")}
    (root,) = [one for one in spans if not one.get("parentSpanId")]
    below = [one["name"] for one in spans if one.get("parentSpanId") == root["spanId"]]
    assert below == ["env.write", "env.exec", "env.read", "code.asserts"]
    by_name = {one["name"]: one for one in spans}
    agent, graded = by_name["env.exec"], by_name["code.asserts"]
    calls = [one for one in spans if one["name"] == f"/v1/chat/completions {MODEL}"]
    assert len(calls) == len(found["calls"])
    assert {one["parentSpanId"] for one in calls} == {agent["spanId"]}
    start, end = (int(agent[f"{name}TimeUnixNano"]) for name in ("start", "end"))
    called = [(int(one["startTimeUnixNano"]), int(one["endTimeUnixNano"])) for one in calls]
    assert start < called[0][0] < called[0][1] <= called[1][0] < called[-1][1] < end, "one after another"
    assert min(until - since for since, until in called) > 0.4e9, "the time of the scripted model"
    assert int(graded["startTimeUnixNano"]) >= end
    assert {"key": "treadle.score", "value": {"doubleValue": 1.0}} in graded["attributes"]


def test_the_demo_says_how_an_agent_becomes_visible(stack: RunningStack) -> None:
    """A program that this stack does not show in its sandboxes."""
    router = {"TRAJECTORY_ROUTER_URL": stack.urls["trajectory_router"]}
    command = [*TREADLE, "demo", "--agent", "--mini", sys.executable, "--url", stack.urls["proxy"]]
    environ = {**clean_environment(), **router}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "CPU_MANAGER_VISIBLE_PATHS=" in done.stderr) == (2, True), done.stderr


def test_the_demo_says_how_an_agent_is_installed() -> None:
    environ = {**clean_environment(), "PATH": "/nowhere"}
    done = subprocess.run(
        [*TREADLE, "demo", "--agent"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, "pip install mini-swe-agent" in done.stderr) == (2, True), done.stderr
