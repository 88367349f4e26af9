"""Traces of trajectories, read where users read them: the route, the client, the command."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import aiohttp
import msgspec
import pytest

from shared.api.otlp import Span, TraceData
from tests.e2e.episodes import Json, Trainer
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.errors import BadRequest, NotFound
from treadle.testing.servers import clean_environment, temporary_home
from treadle.testing.stack import RunningStack, running_stack

TREADLE = (sys.executable, "-m", "treadle.cli.main")
TASK = {
    "stages": [
        {"name": "first", "kind": "noop", "units": {"cores": 1}},
        {"name": "second", "kind": "code.asserts", "params": {"code": "x = 1\nimport time\ntime.sleep(0.2)"}},
    ]
}

TESTS: Json = {"stage_params": {"second": {"tests": "assert x == 1"}}}


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with temporary_home() as root, running_stack(root) as running:
        yield running


@pytest.fixture
async def http(stack: RunningStack) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(stack.urls["proxy"]) as session:
        yield session


@pytest.fixture
async def client(stack: RunningStack) -> AsyncIterator[AsyncTreadle]:
    async with AsyncTreadle(stack.urls["proxy"]) as client:
        yield client


async def spans(client: AsyncTreadle, trajectory: str, count: int) -> list[Span]:
    """Its spans, once it has `count` of them."""
    async with asyncio.timeout(20):
        while True:
            found = msgspec.convert(await client.trajectories.trace(trajectory), TraceData).spans
            if len(found) >= count:
                assert len(found) == count
                return found
            await asyncio.sleep(0.05)


async def post(http: aiohttp.ClientSession, path: str, body: Json, tenant: str = "default") -> Json:
    async with http.post(path, json=body, headers={"Treadle-Tenant": tenant}) as response:
        answer: Json = await response.json()
        assert response.status < 300, answer
        return answer


async def test_one_trace_has_the_actions_of_a_trajectory_and_its_grading(
    http: aiohttp.ClientSession, client: AsyncTreadle
) -> None:
    trainer = Trainer(http)
    trajectory = await trainer.open()
    assert (await trainer.bash(trajectory, "sleep 0.3; echo hi"))["passed"]
    assert not (await trainer.bash(trajectory, "false"))["passed"]
    await trainer.close(trajectory)
    async with http.put("/v1/tasks/graded", json=TASK) as response:
        assert response.status < 300, await response.text()
    batch = await post(http, "/v1/tasks/graded/batches", {"size": 1})
    graded = await post(http, f"/v1/rewards?batch={batch['id']}&wait=30", {"trajectory": trajectory, **TESTS})
    judged = await client.run("noop", {}, trajectory=trajectory)
    assert graded["trajectory"] == judged.trajectory == trajectory

    found = await spans(client, trajectory, 1 + 2 * 3 + 5 + 3)
    root = found[0]
    work = [one for one in found if one.parent_span_id == root.span_id]
    assert [one.name for one in work] == ["env.bash", "env.bash", "graded", "noop"]
    assert [one.attribute("treadle.passed") for one in work] == [True, False, True, None]
    assert work[2].attribute("treadle.score") == 1.0
    assert root.attribute("treadle.state") == "closed"
    first, _, reward, _ = work
    stages = [one for one in found if one.parent_span_id == reward.span_id]
    assert [one.name for one in stages] == ["queue", "first", "queue", "second"]
    assert 0.2 <= stages[-1].duration_s <= reward.duration_s
    (slept,) = [one for one in found if one.parent_span_id == first.span_id and one.name == "run"]
    assert 0.3 <= slept.duration_s <= first.duration_s
    assert work == sorted(work, key=lambda one: one.start_s)


async def test_a_trajectory_of_nobody_is_ignored_and_one_of_another_tenant_gets_nothing(
    http: aiohttp.ClientSession, client: AsyncTreadle
) -> None:
    trajectory = await Trainer(http).open()
    assert (await client.run("noop", {}, trajectory="t" + "0" * 24)).ended == "ok"
    other = await post(http, "/v1/actions?wait=30", {"kind": "noop", "trajectory": trajectory}, tenant="mallory")
    assert other["ended"] == "ok"
    own = await client.run("noop", {}, trajectory=trajectory)
    found = await spans(client, trajectory, 1 + 3)
    assert [one.attribute("treadle.action") for one in found] == [None, own.id, None, None]


async def test_a_line_of_a_bulk_call_can_name_one_and_a_batch_of_another_tenant_adds_nothing(
    http: aiohttp.ClientSession, client: AsyncTreadle
) -> None:
    mine = await Trainer(http).open()
    async with http.put("/v1/tasks/graded", json=TASK) as response:
        assert response.status < 300, await response.text()
    batch = await post(http, "/v1/tasks/graded/batches", {"size": 2})
    line = msgspec.json.encode({"trajectory": mine, **TESTS}) + b"\n"
    for tenant in ("mallory", "default"):
        headers = {"Treadle-Tenant": tenant}
        async with http.post(f"/v1/rewards/bulk?batch={batch['id']}", data=line, headers=headers) as response:
            assert (await response.json())["accepted"] == 1
    async with http.get(f"/v1/batches/{batch['id']}/results?follow=true") as response:
        assert len((await response.text()).splitlines()) == 2
    found = await spans(client, mine, 1 + 5)
    assert [one.name for one in found if one.parent_span_id == found[0].span_id] == ["graded"]


async def test_an_action_that_ended_in_the_queue_is_shown_in_the_queue(
    http: aiohttp.ClientSession, client: AsyncTreadle
) -> None:
    trainer = Trainer(http)
    trajectory = await trainer.open()
    running = asyncio.create_task(trainer.bash(trajectory, "sleep 30"))
    await asyncio.sleep(0.5)
    waiting = await trainer.submit(trajectory, "true")
    await asyncio.sleep(0.5)
    await trainer.cancel(waiting)
    await trainer.close(trajectory)
    assert (await running)["ended"] == "cancelled"
    found = await spans(client, trajectory, 1 + 3 + 3)
    queued = [one.duration_s for one in found if one.name == "queue"]
    assert len(queued) == 2
    assert 0.4 < queued[1] < 10.0
    assert {one.attribute("treadle.ended") for one in found if one.attribute("treadle.action")} == {"cancelled"}


async def test_wrong_ids_and_other_tenants_are_refused(
    stack: RunningStack, http: aiohttp.ClientSession, client: AsyncTreadle
) -> None:
    trajectory = await Trainer(http).open()
    with pytest.raises(NotFound, match="trajectory"):
        await client.trajectories.trace("t" + "0" * 24)
    async with AsyncTreadle(stack.urls["proxy"], tenant="mallory") as other:
        with pytest.raises(NotFound, match="trajectory"):
            await other.trajectories.trace(trajectory)
    with pytest.raises(BadRequest, match="16 to 24 hexadecimal digits"):
        await client.run("noop", {}, trajectory="mine")
    with pytest.raises(BadRequest, match="16 to 24 hexadecimal digits"):
        await client.trajectories.trace("mine")


async def test_the_command_draws_it_and_exports_it(
    stack: RunningStack, http: aiohttp.ClientSession, client: AsyncTreadle
) -> None:
    trainer = Trainer(http)
    trajectory = await trainer.open()
    await trainer.bash(trajectory, "true")
    await spans(client, trajectory, 4)
    status, text, _ = await command(stack, trajectory)
    assert status == 0
    rows = [line.split()[0] for line in text.splitlines()]
    assert [row for row in rows if row != "queue"] == ["span", "trajectory", "env.bash", "run"]
    assert "█" in text
    status, text, _ = await command(stack, trajectory, "--json")
    assert (status, len(msgspec.json.decode(text, type=TraceData).spans)) == (0, 4)
    status, _, error = await command(stack, "t" + "0" * 24)
    assert status == 2
    assert "never opened" in error


async def command(stack: RunningStack, *arguments: str) -> tuple[int, str, str]:
    environ = {**clean_environment(), "TREADLE_URL": stack.urls["proxy"], "COLUMNS": "160"}
    argv = [*TREADLE, "trace", *arguments]
    done = await asyncio.to_thread(subprocess.run, argv, env=environ, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr
