"""An environment is not frozen while its agent has a request about parking to answer."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.cpu_manager.environments.agent import wire
from services.cpu_manager.environments.agent_environment import AgentEnvironment
from services.cpu_manager.environments.channel import AgentChannel
from services.cpu_manager.environments.handles import EnvironmentUsage
from services.cpu_manager.environments.protocol import ActEnd
from shared.messages.environments import EnvironmentSpec
from tests.services.cpu_manager.environments.local.acting import CORE, act
from tests.shared.node.scripted import turns

pytestmark = pytest.mark.asyncio(loop_scope="function")

HANG_S = 20


class StubHandle:
    """An environment that is a flag."""

    alive = True

    def __init__(self) -> None:
        self.thawed = asyncio.Event()
        self.killed = False

    async def resume(self, cores: frozenset[int]) -> None:
        self.thawed.set()

    async def pause(self) -> None:
        self.thawed.clear()

    async def usage(self) -> EnvironmentUsage:
        return EnvironmentUsage()

    async def connect(self) -> socket.socket:
        raise NotImplementedError

    async def kill(self) -> None:
        self.killed = True

    async def close(self) -> None: ...


class StubAgent:
    """The environment's end of the channel. It reads and answers only while the environment is thawed."""

    def __init__(self, connection: socket.socket, handle: StubHandle) -> None:
        self._connection, self._handle = connection, handle
        self._frames = wire.Frames()

    async def read(self) -> dict[str, Any]:
        """Return the next request."""
        while (frame := self._frames.take()) is None:
            self._frames.feed(await asyncio.get_running_loop().sock_recv(self._connection, 1 << 20))
        return frame[0]

    async def answer(self, request: dict[str, Any], ended_by: str = "done") -> None:
        await self._handle.thawed.wait()
        header = {"id": request["id"], "ended_by": ended_by, "passed": True, "reason": "", "wall_s": 0.1}
        await asyncio.get_running_loop().sock_sendall(
            self._connection, wire.pack({**header, "output": {}, "parts": []})
        )


class Parts:
    """An environment, its stub of an agent, and the action that it executes."""

    def __init__(self) -> None:
        ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self.handle = StubHandle()
        self.channel = AgentChannel(ours)
        self.agent = StubAgent(self._theirs, self.handle)
        self.environment = AgentEnvironment(
            "one", EnvironmentSpec(), self.handle, self.channel, dispose=lambda environment: None
        )

    async def begun(self) -> tuple[asyncio.Task[ActEnd], dict[str, Any]]:
        """Begin an action; return it with its request."""
        acting = asyncio.create_task(act(self.environment, "bash", line="true"))
        return acting, await self.agent.read()

    async def close(self) -> None:
        await self.environment.close()
        self._theirs.close()


@asynccontextmanager
async def parts() -> AsyncIterator[Parts]:
    made = Parts()
    try:
        async with asyncio.timeout(HANG_S):
            yield made
    finally:
        await made.close()


async def test_an_action_that_ends_while_it_is_parked_costs_no_environment() -> None:
    async with parts() as it:
        acting, action = await it.begun()
        parking = asyncio.create_task(it.environment.park())
        hold = await it.agent.read()
        await it.agent.answer(action)
        await turns(50)
        await it.agent.answer(hold)
        assert ((await acting).passed, await parking) == (True, False)
        assert it.environment.alive
        assert not it.handle.thawed.is_set()


async def test_an_action_that_ends_when_it_continues_costs_no_environment() -> None:
    async with parts() as it:
        acting, action = await it.begun()
        parking = asyncio.create_task(it.environment.park())
        await it.agent.answer(await it.agent.read())
        assert await parking
        resuming = asyncio.create_task(it.environment.resume(CORE))
        proceed = await it.agent.read()
        await it.agent.answer(action)
        await turns(50)
        await it.agent.answer(proceed)
        await resuming
        assert (await acting).passed
        assert it.environment.alive
        assert not it.handle.thawed.is_set()


async def test_an_action_cancelled_before_its_request_is_sent_costs_no_environment() -> None:
    async with parts() as it:
        acting = asyncio.create_task(act(it.environment, "write", path="file", content="x" * (4 << 20)))
        await turns()
        parking = asyncio.create_task(it.environment.park())
        await turns()
        acting.cancel()
        action = await it.agent.read()
        assert (await it.agent.read())["op"] == "cancel"
        await it.agent.answer(action, "cancelled")
        await asyncio.wait({acting})
        assert not await parking
        assert acting.cancelled()
        assert it.environment.alive


async def test_an_agent_that_does_not_answer_delays_no_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cpu_manager.environments.channel._CONTROL_S", 10 * HANG_S)
    async with parts() as it:
        acting, _ = await it.begun()
        parking = asyncio.create_task(it.environment.park())
        assert (await it.agent.read())["op"] == "hold"
        await it.environment.close()
        assert it.handle.killed
        assert ((await acting).ended_by, await parking) == ("lost", False)
