"""Model services over REST through a real mesh: declared, changed while calls run, removed, and kept by restarts."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.e2e.test_model_services import check, engines, entry, judge
from tests.shared.bus.soon import soon
from treadle.client.answers import ModelServiceView
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.errors import BadRequest, Conflict, Forbidden, NotFound
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

WAIT_S = 120
SECRET = "value-that-nobody-may-read"


@pytest.fixture
def stack(request: pytest.FixtureRequest) -> Iterator[RunningStack]:
    """A stack with two entries in its file. The parameter allows commands over REST."""
    with temporary_home() as root, TemporaryDirectory() as folder:
        declared = Path(folder) / "services.json"
        entries = {"small": entry("small", env={"TOKEN": SECRET}), "large": entry("large")}
        declared.write_text(json.dumps(entries))
        environ = {
            "GPU_MANAGER_DEVICES": '[{"memory_gb": 24}]',
            "GPU_MANAGER_SERVICES": str(declared),
            "GPU_MANAGER_HEARTBEAT_S": "0.3",
            "GPU_MANAGER_ALLOW_COMMANDS": str(request.param),
        }
        with running_stack(root, services="proxy,gpu_manager", environ=environ) as running:
            yield running


@pytest.fixture
async def client(stack: RunningStack) -> AsyncIterator[AsyncTreadle]:
    async with AsyncTreadle(stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        yield client


async def until(client: AsyncTreadle, name: str, holds: Callable[[ModelServiceView], bool]) -> ModelServiceView:
    found: list[ModelServiceView] = []

    async def seen() -> bool:
        try:
            found[:] = [await client.model_services.view(name)]
        except NotFound:
            return False
        return holds(found[0])

    await soon(seen)
    return found[0]


async def applied(client: AsyncTreadle, name: str) -> ModelServiceView:
    return await until(client, name, lambda view: not view.pending and bool(view.nodes))


async def command(stack: RunningStack, *arguments: str, body: str = "") -> tuple[int, str]:
    """(exit status, output) of `treadle services`."""
    line = [sys.executable, "-m", "treadle.cli.main", "services", *arguments, "--url", stack.urls["proxy"]]
    done = await asyncio.to_thread(subprocess.run, line, input=body, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("stack", [False], indirect=True)
async def test_references_work_and_commands_are_rejected(client: AsyncTreadle, stack: RunningStack) -> None:
    await until(client, "small", lambda view: bool(view.nodes))
    with pytest.raises(Forbidden, match="GPU_MANAGER_ALLOW_COMMANDS=true"):
        await client.model_services.set("mine", entry("mine"))
    with pytest.raises(BadRequest, match="unknown field `command`"):
        await client.model_services.set("mine", {"entry": "small", "command": ["id", "{port}"]})
    with pytest.raises(Conflict, match="remove it there"):
        await client.model_services.delete("small")

    await client.model_services.set("second", {"entry": "small", "concurrency": 3})
    view = await applied(client, "second")
    assert (view.source, view.refers_to, view.model, view.concurrency) == ("rest", "small", "small", 3)
    assert view.entry is not None
    assert (view.entry.env, view.entry.command) == (["TOKEN"], {})
    check(await judge(client, "second", 4), "small", 4)

    status, output = await command(stack, "set", "small", "-", body='{"entry": "small", "priority": 5}')
    assert status == 0, output
    assert (await applied(client, "small")).entry is not None
    await until(client, "small", lambda one: one.entry is not None and one.entry.priority == 5)
    assert SECRET not in (await command(stack, "show", "small", "--json"))[1]

    for name in ("proxy", "gpu_manager"):
        pid = stack.kill(name)
        await asyncio.to_thread(stack.await_healthy, name, other_than=pid)
    view = await until(client, "second", lambda one: bool(one.nodes) and not one.pending)
    assert (view.source, view.concurrency) == ("rest", 3)
    await until(client, "small", lambda one: one.source == "rest" and one.entry is not None and one.entry.priority == 5)
    check(await judge(client, "second", 6), "small", 6)

    assert (await command(stack, "rm", "small"))[0] == 0
    await until(client, "small", lambda one: one.source == "file" and one.entry is not None and one.entry.priority == 0)
    await client.model_services.delete("second")
    await gone(client, "second")
    status, output = await command(stack, "show", "second")
    assert (status, "or with treadle services set second FILE" in output) == (2, True), output


async def gone(client: AsyncTreadle, name: str) -> None:
    async def unknown() -> bool:
        try:
            await client.model_services.view(name)
        except NotFound:
            return True
        return False

    await soon(unknown)


@pytest.mark.parametrize("stack", [True], indirect=True)
async def test_a_whole_entry_is_changed_while_calls_run_and_removed(client: AsyncTreadle) -> None:
    await until(client, "small", lambda view: bool(view.nodes))
    await client.model_services.set("mine", entry("first", concurrency=4))
    await applied(client, "mine")
    check(await judge(client, "mine", 3), "first", 3)

    stop = asyncio.Event()
    texts: list[str] = []

    async def calls(words: int) -> None:
        while not stop.is_set():
            answer = await judge(client, "mine", words)
            assert (answer.ended, answer.score) == ("ok", words), answer
            assert answer.output is not None
            texts.append(answer.output["text"].split()[0])

    running: list[Awaitable[None]] = [asyncio.create_task(calls(words)) for words in range(1, 9)]
    await asyncio.sleep(0.5)
    await client.model_services.set("mine", entry("next", concurrency=4))
    await applied(client, "mine")
    changed = len(texts)

    async def answered() -> bool:
        return "next" in texts[changed:]

    await soon(answered)
    stop.set()
    await asyncio.gather(*running)
    assert set(texts) == {"first", "next"}
    check(await judge(client, "mine", 5), "next", 5)
    assert len(engines("next")) == 1

    broken = entry("broken") | {"command": ["no-such-program-7", "{port}"]}
    await client.model_services.set("broken", broken)
    view = await until(client, "broken", lambda one: bool(one.problems))
    assert (view.nodes, "there is no program 'no-such-program-7'" in view.problems[0].why) == ([], True)
    check(await judge(client, "mine", 2), "next", 2)

    await client.model_services.delete("mine")
    await gone(client, "mine")

    async def stopped() -> bool:
        return not engines("next")

    await soon(stopped)
    answer = await client.run("model.judge", {
        "service": "mine", "messages": [{"role": "user", "content": "x"}], "score": {"regex": "([0-9])"},
    }, timeout_s=5, budget_s=3)  # fmt: skip
    assert (answer.ended, answer.mask) == ("expired", True), "as for a service that nobody has declared"
