"""Actions cancelled while their request is on its way to a real agent."""

import asyncio
import base64
import os
import signal
import socket
from pathlib import Path

import pytest

from services.cpu_manager.environments.channel import AgentChannel
from tests.services.cpu_manager.environments.agent.running import connected, do

_CONTENT = base64.b64encode(os.urandom(5 << 20)).decode()
"""More than a socket takes at once."""


async def cancelled(agent: AgentChannel, turns: int) -> None:
    """A write, cancelled after so many turns of the loop."""
    writing = asyncio.create_task(do(agent, "write", path="file", content=_CONTENT, encoding="base64"))
    for _ in range(turns):
        await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait({writing})
    assert writing.cancelled()


async def test_a_request_that_is_cancelled_half_sent_costs_nothing_else(program: Path) -> None:
    async with connected(program) as agent:
        await do(agent, "bash", line="kept=yes")
        for turns in (1, 2, 3, 5, 9):
            await cancelled(agent, turns)
            assert not agent.broken
            assert (await do(agent, "bash", line="echo $kept")).output["output"] == "yes\n"


async def test_the_channel_to_an_agent_that_stops_reading_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cpu_manager.environments.channel._CANCEL_S", 0.1)
    ours, theirs = socket.socketpair()
    agent = AgentChannel(ours)
    await cancelled(agent, 3)
    assert agent.broken
    theirs.close()


async def test_a_request_to_stop_the_clock_may_be_abandoned_while_the_agent_is_frozen(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An action may end, and its environment be frozen, before the agent reads the request."""
    monkeypatch.setattr("services.cpu_manager.environments.channel._CANCEL_S", 0.1)
    async with connected(program) as agent:
        pid = int((await do(agent, "bash", line="kept=yes; echo $PPID")).output["output"])
        running = asyncio.create_task(do(agent, "bash", line="sleep 0.5; echo $kept"))
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGSTOP)
        holding = asyncio.create_task(agent.hold())
        await asyncio.sleep(0.05)
        holding.cancel()
        await asyncio.wait({holding})
        assert holding.cancelled()
        os.kill(pid, signal.SIGCONT)
        await agent.proceed()
        assert (await running).output["output"] == "yes\n"
        assert (await do(agent, "bash", line="echo $kept")).output["output"] == "yes\n"
