"""Retries: idempotent calls are repeated while Valkey is away, and not once more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import BusyLoadingError, ReadOnlyError, ResponseError
from redis.exceptions import ConnectionError as Broken

from shared.bus.connection import ValkeyClock, with_retries
from shared.runtime.errors import Unavailable


def failing(*errors: Exception) -> Callable[[], Awaitable[str]]:
    left = list(errors)

    async def attempt() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return attempt


@pytest.mark.parametrize(
    "error", [Broken("away"), BusyLoadingError("loading"), ReadOnlyError("replica"), OSError("reset")]
)
async def test_it_repeats_while_the_server_is_away(error: Exception) -> None:
    assert await with_retries(failing(error, error), what="asking", limit_s=None, pause_s=0.001) == "done"


async def test_a_retry_that_gives_up_names_its_call() -> None:
    with pytest.raises(Unavailable, match="asking: Valkey has not answered"):
        await with_retries(failing(*[Broken("away")] * 1000), what="asking", limit_s=0.01, pause_s=0.001)


async def test_no_pause_begins_beyond_the_time_limit() -> None:
    with pytest.raises(Unavailable):
        await with_retries(failing(Broken("away")), what="asking", limit_s=1.0, pause_s=3600.0)


async def test_errors_other_than_unavailability_are_not_retried() -> None:
    with pytest.raises(ResponseError):
        await with_retries(failing(ResponseError("wrong")), what="asking", limit_s=None)


async def test_the_clock_puts_valkeys_time_between_question_and_answer() -> None:
    class At1000(Redis):
        async def execute_command(self, *args: Any, **options: Any) -> list[bytes]:
            return [b"1000", b"500000"]

    loop = asyncio.get_running_loop()
    before = loop.time()
    clock = await ValkeyClock.measure(At1000())
    after = loop.time()

    assert before <= clock.monotonic(1000.5) <= after
    assert clock.monotonic(clock.unix()) >= after


async def test_an_answer_that_lay_unread_does_not_set_the_clock() -> None:
    class Unread(Redis):
        asked = 0

        async def execute_command(self, *args: Any, **options: Any) -> list[bytes]:
            self.asked += 1
            now = time.monotonic() + 1000.0
            if self.asked != 3:
                time.sleep(0.1)  # noqa: ASYNC251  # the loop is busy with other things
            return [str(int(now)).encode(), str(int(now % 1 * 1e6)).encode()]

    clock = await ValkeyClock.measure(Unread())
    assert abs(clock.unix() - time.monotonic() - 1000.0) < 0.025
