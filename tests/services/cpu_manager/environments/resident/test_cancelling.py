"""Actions cancelled while their request is on its way to a real resident."""

import asyncio
import base64
import os
import socket
from pathlib import Path

import pytest

from services.cpu_manager.environments.channel import Resident
from tests.services.cpu_manager.environments.resident.running import connected, do

_CONTENT = base64.b64encode(os.urandom(5 << 20)).decode()
"""More than a socket takes at once."""


async def cancelled(resident: Resident, turns: int) -> None:
    """A write, cancelled after so many turns of the loop."""
    writing = asyncio.create_task(do(resident, "write", path="file", content=_CONTENT, encoding="base64"))
    for _ in range(turns):
        await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait({writing})
    assert writing.cancelled()


async def test_a_request_that_is_cancelled_half_sent_costs_nothing_else(program: Path) -> None:
    async with connected(program) as resident:
        await do(resident, "bash", line="kept=yes")
        for turns in (1, 2, 3, 5, 9):
            await cancelled(resident, turns)
            assert not resident.broken
            assert (await do(resident, "bash", line="echo $kept")).output["output"] == "yes\n"


async def test_a_resident_that_takes_no_more_of_a_request_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cpu_manager.environments.channel._CANCEL_S", 0.1)
    ours, theirs = socket.socketpair()
    resident = Resident(ours)
    await cancelled(resident, 3)
    assert resident.broken
    theirs.close()
