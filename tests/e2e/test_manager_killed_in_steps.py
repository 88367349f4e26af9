"""A GPU manager that is killed exactly while an engine loads, falls asleep, wakes, or answers its canary."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psutil
import pytest

from tests.e2e import held_vllm
from tests.shared.bus.soon import soon
from treadle.client.answers import Answer
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.requests import RewardRequest
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

ROOT = Path(__file__).parents[2]
WAIT_S = 150
SERVICES = ("first", "second")


class Case(NamedTuple):
    """The step of `first` in which the manager is killed."""

    used: tuple[str, ...]
    """Services that are used before, in order: the last one is resident, the other one sleeps. Empty: all are cold."""
    wanted: str
    """Service whose requests cause the step."""
    kept: tuple[str, ...]
    """Services whose engines the next manager adopts, by the residency that it reads from them."""


CASES = {
    "load": Case((), "first", ()),
    "evict": Case(("second", "first"), "second", ("second",)),
    "restore": Case(("first", "second"), "first", ("second",)),
    "canary": Case(("first", "second"), "first", SERVICES),
}


class Mesh(NamedTuple):
    stack: RunningStack
    control: Path
    """Folder by which engines are held in a step."""


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    """A stack whose GPU has room for one of two engines awake, beside the sleeping other one."""
    with temporary_home() as root, TemporaryDirectory() as named:
        control = Path(named)
        command = [sys.executable, "-m", held_vllm.__name__, "--port", "{port}", "--model", "{model}"]
        common = {
            "backend": "vllm", "command": [*command, "--control", named], "memory_gb": {"awake": 16, "asleep": 1},
            "canary": {"prompt": "2+2=", "expect": "4"}, "env": {"PYTHONPATH": str(ROOT)}, "min_residency_s": 0,
        }  # fmt: skip
        declared = control / "services.json"
        declared.write_text(json.dumps({name: {**common, "model": name} for name in SERVICES}))
        environ = {"GPU_MANAGER_DEVICES": '[{"memory_gb": 24}]', "GPU_MANAGER_SERVICES": str(declared)}
        with running_stack(root, services="proxy,scaling_planner,gpu_manager", environ=environ) as running:
            yield Mesh(running, control)


@pytest.fixture
async def client(mesh: Mesh) -> AsyncIterator[AsyncTreadle]:
    async with AsyncTreadle(mesh.stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        stage = {"name": "judge", "kind": "model.judge", "params": {"score": {"regex": "counts ([0-9]+)"}}}
        await client.put_task("judged", {"stages": [stage]})
        yield client


def engines(mesh: Mesh) -> dict[str, psutil.Process]:
    """Return the engine of each service that runs; their guards have another command."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if line[1:3] == ["-m", held_vllm.__name__] and str(mesh.control) in line:
            found[line[line.index("--model") + 1]] = process
    return found


def request(step: str, service: str, number: int) -> RewardRequest:
    """Return a request with a text of its own."""
    params: dict[str, Any] = {
        "service": service,
        "messages": [{"role": "user", "content": text(step, service, number)}],
    }
    return RewardRequest(request_id=f"{service}-{number}", params=params)


def text(step: str, service: str, number: int) -> str:
    return " ".join([step, service, *["word"] * number])


async def prepare(client: AsyncTreadle, mesh: Mesh, case: Case) -> None:
    """Bring the engines into the states of a case."""
    if not case.used:
        for engine in engines(mesh).values():
            engine.kill()

        async def are_cold() -> bool:
            views = await client.model_services.all()
            return all(one.state == "cold" for view in views for one in view.engines)

        await soon(are_cold, within_s=WAIT_S)
    for number, service in enumerate((*case.used, *case.used)):  # twice: each is evicted, and the other restored
        graded = await client.grade("judged", [request("before", service, number)])
        assert [answer.ended for answer in graded.answers.values()] == ["ok"], graded


async def results(client: AsyncTreadle, batch: str) -> list[Answer]:
    return [result async for page in client.results(batch) for result in page]


@pytest.mark.parametrize("step", CASES)
async def test_waiting_actions_are_answered_once_by_their_model(client: AsyncTreadle, mesh: Mesh, step: str) -> None:
    case = CASES[step]
    await prepare(client, mesh, case)
    hold, reached = (mesh.control / f"{what}-{step}-first" for what in ("hold", "reached"))
    hold.touch()
    batch = await client.open_batch("judged", size=6)
    other = next(name for name in SERVICES if name != case.wanted)
    await client.submit(batch.id, [request(step, case.wanted, number) for number in range(3)])

    async def is_held() -> bool:
        return reached.exists()

    await soon(is_held, within_s=WAIT_S)
    await client.submit(batch.id, [request(step, other, number) for number in range(3)])
    before = engines(mesh)
    killed = mesh.stack.kill("gpu_manager")
    hold.unlink()
    await asyncio.to_thread(mesh.stack.await_healthy, "gpu_manager", other_than=killed)

    answers = await results(client, batch.id)
    expected = {f"{service}-{number}": f"{service} counts {2 + number}" for service in SERVICES for number in range(3)}
    assert sorted(str(answer.request_id) for answer in answers) == sorted(expected), "each is answered once"
    for answer in answers:
        assert (answer.ended, answer.mask) == ("ok", False), answer
        assert answer.output is not None
        assert answer.output["text"] == expected[str(answer.request_id)]
    assert max(answer.stages[0].attempts for answer in answers) > 1, "one was granted when the manager was killed"
    calls = [json.loads(line) for line in (mesh.control / "calls").read_text().splitlines()]
    executed = sorted((call["model"], call["content"]) for call in calls if call["content"].split()[0] == step)
    assert executed == sorted((one, text(step, one, number)) for one in SERVICES for number in range(3))
    assert await results(client, batch.id) == answers, "a repeated reading gives the same answers"
    after = engines(mesh)
    assert {name for name in before if after.get(name) == before[name]} == set(case.kept)
    assert all(not process.is_running() for name, process in before.items() if name not in case.kept)
