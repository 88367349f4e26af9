"""Messages between a manager and its forwarder arrive in order, with their descriptors, however late they are read."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator

import pytest

from services.cpu_manager.forwarder.control import (
    CallsChanged,
    ControlOutbox,
    RouterAt,
    Serve,
    StopServing,
    receive_down,
    receive_up,
)
from services.cpu_manager.sandbox.transport import socket_pair

Ends = tuple[ControlOutbox, socket.socket]


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    ours, theirs = socket_pair()
    theirs.setblocking(False)
    outbox = ControlOutbox(ours)
    yield outbox, theirs
    outbox.close()
    ours.close()
    theirs.close()


async def test_messages_wait_for_a_slow_reader(ends: Ends) -> None:
    outbox, theirs = ends
    with open(os.devnull) as file:  # noqa: ASYNC230, PTH123
        for number in range(3000):
            outbox.put(Serve(f"t{number}", "key"), file.fileno())
    assert len(outbox) > 0
    received: list[str] = []
    while len(received) < 3000:
        try:
            message, descriptors = receive_down(theirs)
        except BlockingIOError:
            await asyncio.sleep(0)
            continue
        assert isinstance(message, Serve)
        received.append(message.trajectory)
        for descriptor in descriptors:
            assert os.fstat(descriptor).st_rdev == os.makedev(1, 3)
            os.close(descriptor)
    assert received == [f"t{number}" for number in range(3000)]
    assert len(outbox) == 0


async def test_each_message_is_read_as_it_was_sent(ends: Ends) -> None:
    outbox, theirs = ends
    for message in (RouterAt("http://r:1"), StopServing("t")):
        outbox.put(message)
        assert receive_down(theirs) == (message, [])
    outbox.put(CallsChanged("t", 2, 1))
    assert receive_up(theirs) == CallsChanged("t", 2, 1)


async def test_the_end_of_the_other_side_loses_what_waits(ends: Ends) -> None:
    outbox, theirs = ends
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with open(os.devnull) as file:  # noqa: ASYNC230, PTH123
        for _ in range(3000):
            outbox.put(Serve("t", "key"), file.fileno())
        theirs.close()
        for _ in range(3):
            await asyncio.sleep(0.01)
    assert len(outbox) == 0
    outbox.put(StopServing("t"))
    assert len(os.listdir("/proc/self/fd")) <= descriptors  # noqa: PTH208
