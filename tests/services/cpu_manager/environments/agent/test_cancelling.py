"""Actions cancelled while their request is on its way to a real agent."""

import asyncio
import base64
import os
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
