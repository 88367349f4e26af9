"""Progress reports of trainers: published, at a bounded rate, and never in place of other entries of the stream."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from services.proxy.records import rollouts as rollouts_module
from services.proxy.records.rollouts import Rollouts
from shared.api.batches import ProgressReport
from shared.bus.connection import command
from shared.messages.batches import BATCHES, BatchOpened, RolloutProgress
from shared.runtime.errors import Conflict, NotFound, Unavailable
from tests.services.proxy.mesh import START, StillClock
from tests.shared.bus.flaky import Flaky
from tests.shared.bus.journal import Journal


class RolloutsWithClock(Rollouts):
    """Rollouts with a clock that the test sets."""

    def __init__(self, redis: Redis) -> None:
        self.time = StillClock()
        super().__init__(redis, self.time)

    async def takes(self, generating: int, batch: str = "b", lengths: list[float] | None = None) -> bool:
        receipt = await self.report(batch, ProgressReport(generating=generating, lengths=lengths))
        assert (receipt.batch, receipt.generating) == (batch, generating)
        return receipt.taken


@pytest.fixture
async def rollouts(journal: Journal) -> RolloutsWithClock:
    await journal.open("b")
    await journal.open("c")
    return RolloutsWithClock(journal.redis)


async def progress_reports(journal: Journal) -> list[RolloutProgress]:
    return [message for message in await journal.messages(BATCHES) if isinstance(message, RolloutProgress)]


@pytest.mark.parametrize(
    ("lengths", "tokens"), [(None, None), ([], None), ([7.0], 7.0), ([1.0, 9.0], 5.0), ([3, 1, 2], 2.0)]
)
async def test_a_report_is_published_with_the_median_length(
    rollouts: RolloutsWithClock, journal: Journal, lengths: list[float] | None, tokens: float | None
) -> None:
    assert await rollouts.takes(3, lengths=lengths)

    assert await progress_reports(journal) == [RolloutProgress(batch="b", at=START, generating=3, tokens=tokens)]


async def test_one_a_second_of_each_batch_is_taken(rollouts: RolloutsWithClock, journal: Journal) -> None:
    assert [await rollouts.takes(9), await rollouts.takes(8), await rollouts.takes(7, "c")] == [True, False, True]
    rollouts.time.now += 0.999
    assert not await rollouts.takes(6)
    rollouts.time.now += 0.001
    assert await rollouts.takes(5)

    assert [(one.batch, one.generating) for one in await progress_reports(journal)] == [("c", 7), ("b", 5)]


async def test_the_end_of_a_rollout_is_taken_at_once_and_once(rollouts: RolloutsWithClock) -> None:
    assert [await rollouts.takes(3), await rollouts.takes(0), await rollouts.takes(0), await rollouts.takes(3)] == [
        True,
        True,
        False,
        False,
    ]


async def test_of_reports_at_the_same_moment_one_is_taken(rollouts: RolloutsWithClock, journal: Journal) -> None:
    assert sorted(await asyncio.gather(*(rollouts.takes(3) for _ in range(5)))) == [False] * 4 + [True]
    assert len(await progress_reports(journal)) == 1


async def test_the_stream_keeps_the_newest_of_each_batch_and_everything_else(
    rollouts: RolloutsWithClock, journal: Journal
) -> None:
    for generating in (9, 8, 7):
        assert await rollouts.takes(generating)
        rollouts.time.now += 1.0
    messages = await journal.messages(BATCHES)
    assert [one.batch for one in messages if isinstance(one, BatchOpened)] == ["b", "c"]
    assert [one.generating for one in await progress_reports(journal)] == [7]


async def test_a_batch_that_never_was_is_not_found(rollouts: RolloutsWithClock, journal: Journal) -> None:
    for _ in range(2):
        with pytest.raises(NotFound):
            await rollouts.takes(3, "never")
    assert await progress_reports(journal) == []


@pytest.mark.parametrize("state", ["cancelled", "abandoned", "complete"])
async def test_a_batch_that_has_ended_is_a_conflict(rollouts: RolloutsWithClock, journal: Journal, state: str) -> None:
    await journal.submit("r", batch="b")
    if state == "complete":
        await journal.end("b", "sealed")
        await journal.finish("r", (await journal.fields("action:r"))["entry"].decode(), "b")
    else:
        await journal.end("b", state)

    with pytest.raises(Conflict, match=state):
        await rollouts.takes(3)
    assert await progress_reports(journal) == []


async def test_reports_of_a_sealed_batch_are_still_published(rollouts: RolloutsWithClock, journal: Journal) -> None:
    await journal.submit("r", batch="b")
    await journal.end("b", "sealed")

    assert await rollouts.takes(0)


async def test_a_report_that_did_not_get_through_does_not_take_the_turn_of_the_next(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def without_retries(attempt: object, **_: object) -> None:
        raise Unavailable(what="Valkey does not answer")

    await journal.open("b")
    rollouts = RolloutsWithClock(Flaky(journal.redis))
    with monkeypatch.context() as patch:
        patch.setattr(rollouts_module, "with_retries", without_retries)
        with pytest.raises(Unavailable):
            await rollouts.takes(3)
    assert await rollouts.takes(3)


async def test_a_lost_reply_does_not_lose_the_report(journal: Journal) -> None:
    await journal.open("b")
    flaky = Flaky(journal.redis)
    flaky.failures = ["before", "after"]

    assert await RolloutsWithClock(flaky).takes(3)
    assert len(await progress_reports(journal)) == 1


async def test_remembered_reports_are_bounded(rollouts: RolloutsWithClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts_module, "MOST_KNOWN", 1)
    taken = [await rollouts.takes(count, batch) for count, batch in ((3, "b"), (3, "c"), (2, "c"), (2, "b"))]
    assert taken == [True, True, False, True]


async def test_a_report_that_is_replaced_while_the_planner_is_away_is_no_poison(
    rollouts: RolloutsWithClock, journal: Journal
) -> None:
    """The entry of a pending delivery is deleted: the group skips it and continues."""
    redis = journal.redis
    await command(redis, "XGROUP", "CREATE", BATCHES.name, "planner", "0")
    assert await rollouts.takes(9)
    read = ("XREADGROUP", "GROUP", "planner", "me", "STREAMS", BATCHES.name)
    assert len((await command(redis, *read, ">"))[0][1]) == 3
    rollouts.time.now += 1.0
    assert await rollouts.takes(8)
    pending = (await command(redis, *read, "0"))[0][1]
    assert [fields is None for _, fields in pending] == [False, False, True]
    (newest,) = (await command(redis, *read, ">"))[0][1]
    assert BATCHES.decode(newest[1][1]) == RolloutProgress(batch="b", at=START + 1.0, generating=8)
