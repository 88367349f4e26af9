"""The head of an answer and its first bytes are one write; order, closing and heads without a body stay as they are."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from treadle.stack.joined_head import MOST_JOINED, JoinedHead

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"


class Recorded:
    """A transport that keeps what it gets."""

    def __init__(self) -> None:
        self.writes: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.writes.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.writes


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
async def joined(recorded: Recorded) -> JoinedHead:
    return JoinedHead(cast("asyncio.Transport", cast("Any", recorded)), asyncio.get_running_loop())


async def test_a_head_leaves_with_the_bytes_behind_it(joined: JoinedHead, recorded: Recorded) -> None:
    joined.write(HEAD)
    assert recorded.writes == []
    joined.write(b"body")
    joined.write(b"more")
    assert recorded.writes == [HEAD + b"body", b"more"]
    await asyncio.sleep(0)
    assert recorded.writes == [HEAD + b"body", b"more"], "it was sent once"


async def test_a_head_alone_leaves_at_the_end_of_the_turn(joined: JoinedHead, recorded: Recorded) -> None:
    joined.write(HEAD)
    await asyncio.sleep(0)
    assert recorded.writes == [HEAD]
    joined.write(b"body")
    assert recorded.writes == [HEAD, b"body"]


async def test_two_heads_keep_their_order(joined: JoinedHead, recorded: Recorded) -> None:
    """The first has no body, as one of status 204."""
    joined.write(HEAD)
    joined.write(HEAD)
    joined.write(b"body")
    await asyncio.sleep(0)
    assert b"".join(one for one in recorded.writes if isinstance(one, bytes)) == HEAD + HEAD + b"body"


async def test_a_large_body_is_not_copied(joined: JoinedHead, recorded: Recorded) -> None:
    large = bytes(MOST_JOINED + 1)
    joined.write(HEAD)
    joined.write(large)
    assert recorded.writes == [HEAD, large]


async def test_a_closed_connection_gets_its_head_first(joined: JoinedHead, recorded: Recorded) -> None:
    joined.write(HEAD)
    joined.close()
    await asyncio.sleep(0)
    assert recorded.writes == [HEAD, "closed"]
    assert joined.is_closing()
