"""A waiter gets the answer: from the leader, by a read on a wake-up, or by the recheck."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from services.proxy.records.waiters import Waiters
from shared.runtime.errors import Unavailable


class AnswerStore:
    """A store of answers that records its reads and can be unreachable."""

    def __init__(self) -> None:
        self.there: dict[str, bytes] = {}
        self.asked: list[list[str]] = []
        self.away = 0
        """Number of the next reads that fail."""

    async def __call__(self, actions: list[str]) -> dict[str, bytes]:
        self.asked.append(actions)
        if self.away:
            self.away -= 1
            raise Unavailable(what="Valkey is away")
        return {action: self.there[action] for action in actions if action in self.there}


@pytest.fixture
def answers() -> AnswerStore:
    return AnswerStore()


@pytest.fixture
def waiters(answers: AnswerStore) -> Waiters:
    return Waiters(answers, recheck_s=0.001)


@pytest.fixture
async def rechecking(waiters: Waiters) -> AsyncIterator[None]:
    task = asyncio.create_task(waiters.recheck())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_every_waiter_of_an_action_gets_its_answer(waiters: Waiters) -> None:
    futures = [waiters.expect("a"), waiters.expect("a"), waiters.expect("b")]

    waiters.resolve("a", b"answer")

    assert [await futures[0], await futures[1]] == [b"answer", b"answer"]
    assert not futures[2].done()
    assert waiters.waited_for() == ["b"]


async def test_an_answer_without_waiters_is_dropped(waiters: Waiters) -> None:
    waiters.resolve("a", b"answer")

    assert len(waiters) == 0


async def test_a_cancelled_waiter_does_not_block_the_others(waiters: Waiters) -> None:
    gone, stays = waiters.expect("a"), waiters.expect("a")
    gone.cancel()

    waiters.resolve("a", b"answer")

    assert await stays == b"answer"


async def test_the_last_one_to_forget_leaves_nothing_behind(waiters: Waiters) -> None:
    first, second = waiters.expect("a"), waiters.expect("a")

    waiters.discard("a", first)
    assert waiters.awaits("a")
    waiters.discard("a", second)
    assert (waiters.awaits("a"), len(waiters)) == (False, 0)


async def test_forgetting_after_the_answer_is_harmless(waiters: Waiters) -> None:
    future = waiters.expect("a")
    waiters.resolve("a", b"answer")
    another = waiters.expect("a")

    waiters.discard("a", future)

    assert waiters.awaits("a")
    waiters.discard("a", another)


async def test_only_what_is_waited_for_is_looked_up(waiters: Waiters, answers: AnswerStore) -> None:
    answers.there = {"a": b"answer", "c": b"other"}
    future, still_open = waiters.expect("a"), waiters.expect("b")

    await waiters.look_up(["a", "b", "c"])

    assert answers.asked == [["a", "b"]]
    assert (await future, still_open.done()) == (b"answer", False)


async def test_many_are_looked_up_in_pieces(waiters: Waiters, answers: AnswerStore) -> None:
    answers.there = {str(number): b"%d" % number for number in range(600)}
    futures = [waiters.expect(str(number)) for number in range(600)]

    await waiters.look_up(waiters.waited_for())

    assert [await future for future in futures] == [b"%d" % number for number in range(600)]
    assert [len(asked) for asked in answers.asked] == [256, 256, 88]


async def test_a_store_that_is_away_costs_a_delay_and_not_the_service(
    waiters: Waiters, answers: AnswerStore, rechecking: None
) -> None:
    answers.there, answers.away = {"a": b"answer"}, 3
    future = waiters.expect("a")

    await waiters.look_up(["a"])
    assert not future.done()

    async with asyncio.timeout(20):
        assert await future == b"answer"


async def test_a_missed_wake_up_is_made_good_by_the_recheck(
    waiters: Waiters, answers: AnswerStore, rechecking: None
) -> None:
    answers.there = {"a": b"answer"}

    async with asyncio.timeout(20), waiters.following("b") as news:
        assert await waiters.expect("a") == b"answer"
        await news.wait()


async def test_followers_are_woken_for_their_own_batch(waiters: Waiters) -> None:
    async with waiters.following("b") as first, waiters.following("b") as second, waiters.following("c") as other:
        waiters.wake(["b", "nobody follows"])

        assert [event.is_set() for event in (first, second, other)] == [True, True, False]


async def test_a_follower_that_left_is_not_kept(waiters: Waiters) -> None:
    async with waiters.following("b") as stays:
        with pytest.raises(ValueError, match="reader failed"):
            async with waiters.following("b") as left:
                raise ValueError("reader failed")

        waiters.wake(["b"])
        assert (stays.is_set(), left.is_set()) == (True, False)

    waiters.wake(["b"])
    assert not left.is_set()


async def test_a_batch_without_followers_is_not_kept(waiters: Waiters) -> None:
    async with waiters.following("b"):
        async with waiters.following("b"):
            pass
        assert list(waiters._followed) == ["b"], "the first one still follows"

    assert waiters._followed == {}
