"""A local environment calls its own model at a loopback address. On every rung that has environments."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from services.cpu_manager.environments.local.runtime import CellEnvironment, LocalRuntime
from services.cpu_manager.environments.protocol import BadEnvironment, RuntimeUnavailable
from services.cpu_manager.environments.runtimes import Runtimes
from services.cpu_manager.forwarder import forwarder as forwarder_module
from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.rungs import Rung
from shared.bus.routers import RouterAddress
from tests.services.cpu_manager.environments.local.acting import (
    CORE,
    WITH_MODEL,
    act,
    output_of,
    printed,
    run,
    until,
)
from tests.services.cpu_manager.environments.models import CALL, ModelMesh, connections_of
from tests.services.cpu_manager.sandbox.conftest import passable


async def test_a_program_calls_its_model_as_a_client_does(
    with_model: CellEnvironment, mesh: ModelMesh, trajectory: str
) -> None:
    key = mesh.forwarder._keys.of(trajectory)  # type: ignore[union-attr]
    assert await printed(with_model, "print(openai().read().decode())") == mesh.engine.whole().decode().rstrip()
    streamed = await printed(with_model, "print(repr(openai(stream=True).read()))")
    assert streamed == repr(b"".join(mesh.engine.events()))
    anthropic = "call(os.environ['ANTHROPIC_BASE_URL'], '/v1/messages?beta=true', '').status"
    assert await printed(with_model, f"print({anthropic})") == "200"
    models = "print(urllib.request.urlopen(os.environ['OPENAI_BASE_URL'] + '/models').read().decode())"
    assert [model["id"] for model in json.loads(await printed(with_model, models))["data"]] == ["tiny"]
    head = (
        "print(urllib.request.urlopen(urllib.request.Request(os.environ['ANTHROPIC_BASE_URL'], method='HEAD')).status)"
    )
    assert await printed(with_model, head) == "200"
    assert [target for _, target, _ in mesh.engine.received] == ["/v1/chat/completions"] * 2 + [
        "/v1/messages?beta=true"
    ]
    for _, _, headers in mesh.engine.received:
        assert not {"authorization", "x-api-key", "x-trajectory-priority"} & {name.lower() for name in headers}
        assert key not in str(headers)


async def test_events_arrive_as_they_are_sent(with_model: CellEnvironment, mesh: ModelMesh) -> None:
    mesh.engine.pause_s = 0.3
    program = """
import time
answer = openai(stream=True)
times = [time.monotonic() for line in answer if line.startswith(b"data")]
print(times[-1] - times[0] > 0.5)
"""
    assert await printed(with_model, program) == "True"


async def test_variables_of_the_specification_replace_ours(models: LocalRuntime, trajectory: str) -> None:
    spec = msgspec.structs.replace(WITH_MODEL, env={"OPENAI_API_KEY": "mine"})
    environment = await models.create(trajectory, spec, CORE)
    assert await output_of(environment, "echo $OPENAI_API_KEY $ANTHROPIC_API_KEY") == "mine in-sandbox"
    await environment.close()


async def test_a_program_that_ends_ends_its_call(with_model: CellEnvironment, mesh: ModelMesh, trajectory: str) -> None:
    mesh.engine.gate = asyncio.Event()
    await act(with_model, "write", path="call.py", content=CALL + "open('calls', 'w'); openai(stream=True)")
    await output_of(with_model, "python3 call.py & echo $! > pid; until [ -e calls ]; do sleep 0.01; done; sleep 0.3")
    await until(lambda: mesh.engine.running == 1, "no call")
    assert mesh.changes[-1] == (trajectory, 1, 1)
    assert mesh.forwarder.calls(trajectory).waiting == 1
    await output_of(with_model, "kill -9 $(cat pid); wait || true; sleep 0.2")
    await until(lambda: mesh.engine.gone == 1, "the engine was not told")
    await until(lambda: mesh.changes[-1] == (trajectory, 0, 0), "its end was not reported")


@pytest.mark.parametrize("chunks", [1_000, 10_000, 60_000, 100_000])
async def test_an_answer_to_a_frozen_environment_waits_at_most_until_the_buffers_are_full(
    with_model: CellEnvironment, mesh: ModelMesh, trajectory: str, chunks: int
) -> None:
    """Then it has to be thawed. Answers of 60 kB to 6 MB: they end before that, about then, and long after it."""
    mesh.engine.gate, mesh.engine.chunks = asyncio.Event(), chunks
    acting = asyncio.create_task(printed(with_model, "print(len(openai(stream=True).read()))"))
    await until(lambda: mesh.changes[-1:] == [(trajectory, 1, 1)], "no call")
    assert await with_model.park()
    mesh.engine.gate.set()
    await until(lambda: mesh.changes[-1] != (trajectory, 1, 1), "it is not reported")
    assert not acting.done()
    await with_model.resume(CORE)
    assert await acting == str(len(b"".join(mesh.engine.events())))
    await until(lambda: mesh.changes[-1] == (trajectory, 0, 0), "its end was not reported")


async def test_closing_the_environment_ends_everything(models: LocalRuntime, mesh: ModelMesh, trajectory: str) -> None:
    environment = await models.create(trajectory, WITH_MODEL, CORE)
    mesh.engine.gate = asyncio.Event()
    await act(environment, "write", path="call.py", content=CALL + "open('calls', 'w'); openai(stream=True)")
    await output_of(environment, "python3 call.py & until [ -e calls ]; do sleep 0.01; done; sleep 0.3")
    await until(lambda: mesh.engine.running == 1, "no call")
    await environment.close()
    await until(lambda: mesh.engine.gone == 1, "its call goes on")
    await until(lambda: connections_of(mesh.forwarder) == 0, "a socket is left")
    assert mesh.forwarder._listeners == {}


async def test_a_killed_forwarder_comes_back(with_model: CellEnvironment, mesh: ModelMesh, trajectory: str) -> None:
    assert await printed(with_model, "print(openai().status)") == "200"
    mesh.engine.gate = asyncio.Event()
    await act(with_model, "write", path="call.py", content=CALL + "open('calls', 'w'); openai(stream=True)")
    await output_of(
        with_model,
        "(python3 call.py; echo $? > code) 2> /dev/null & until [ -e calls ]; do sleep 0.01; done; sleep 0.3",
    )
    await until(lambda: mesh.engine.running == 1, "no call")
    killed = mesh.forwarder.pid
    os.kill(killed, signal.SIGKILL)
    await until(lambda: mesh.forwarder.pid not in (0, killed), "it was not started again")
    assert await output_of(with_model, "until [ -e code ]; do sleep 0.05; done; cat code") == "1"
    assert mesh.changes[-1] == (trajectory, 0, 0)
    mesh.engine.gate = None
    assert await printed(with_model, "print(openai().status)") == "200"


@pytest.fixture
def soon_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder_module, "SILENT_S", 4.0)


@pytest.mark.usefixtures("soon_silent")
async def test_a_forwarder_that_hangs_is_replaced_and_one_that_answers_is_not(
    with_model: CellEnvironment, mesh: ModelMesh
) -> None:
    assert await printed(with_model, "print(openai().status)") == "200"
    running = mesh.forwarder.pid
    await asyncio.sleep(5.0)
    assert mesh.forwarder.pid == running
    os.kill(running, signal.SIGSTOP)
    await until(lambda: mesh.forwarder.pid not in (0, running), "it was not started again")
    assert await printed(with_model, "print(openai().status)") == "200"


async def test_a_forwarder_ends_with_its_manager(with_model: CellEnvironment, mesh: ModelMesh) -> None:
    assert await printed(with_model, "print(openai().status)") == "200"
    pid = mesh.forwarder.pid
    await mesh.forwarder.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not (await run(with_model, "openai()")).passed


async def test_without_a_router_it_is_refused(
    models: LocalRuntime, mesh: ModelMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none(_: object) -> None:
        return None

    monkeypatch.setattr(forwarder_module, "ROUTER_WAIT_S", 0.3)
    monkeypatch.setattr(RouterAddress, "address", none)
    with pytest.raises(BadEnvironment, match="no trajectory router runs"):
        await models.create("unrouted", WITH_MODEL, CORE)


async def test_a_runtime_without_access_refuses_it() -> None:
    with passable() as folder:
        sandbox = await LocalSandbox.create(scratch=folder / "scratch")
        runtime = await LocalRuntime.open(sandbox)
        with pytest.raises(BadEnvironment, match="reaches no model"):
            await runtime.create("none", WITH_MODEL, CORE)
        await runtime.close()
        await sandbox.close()


async def test_the_landlock_rung_refuses_it_with_the_reason() -> None:
    sandbox = SimpleNamespace(ladder=SimpleNamespace(chosen=Rung.LANDLOCK))
    with pytest.raises(RuntimeUnavailable, match="nor reach their model and nothing else") as refused:
        await LocalRuntime.open(cast("LocalSandbox", sandbox))
    with pytest.raises(BadEnvironment, match=r"no local runtime.*landlock rung has no namespaces"):
        Runtimes([], {"local": str(refused.value)}).of("local")
