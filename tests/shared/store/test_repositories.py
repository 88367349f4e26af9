"""Rows are read from the store as they were written, once."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from shared.policy.scaling.workload import UNREACHED, BatchRecord, OpenedBatch, Stage
from shared.store.batches import BatchHistory
from shared.store.database import Sessions, transaction
from shared.store.plans import Plans
from shared.store.records import BatchRequests, EndedBatch, StoredPlan

STAGES = (Stage("compile", 1.0, 10.0, "cpu@host", 2), Stage("run", 8.0, 5.0, "gpu@host"))
OPENED = OpenedBatch("b1", "ada", "kernels", 3, STAGES, 2.0, 64.0, 1_763_700_000.123)
REQUESTS = BatchRequests(
    arrival_s=(0.0, 0.25, 7.5),
    queue_s=((0.1, 0.2, 0.3), (0.0, UNREACHED, 0.4)),
    execution_s=((1.0, 2.0, 3.0), (4.0, UNREACHED, 6.0)),
    units=((2, 2, 2), (1, 0, 1)),
    overhead_s=(0.001, 0.002, 0.003),
)
ENDED = EndedBatch(
    "b1",
    "ada",
    "kernels",
    "complete",
    1_763_700_000.123,
    1_763_700_004.5,
    1_763_700_090.25,
    3,
    0.5,
    {"ok": 3},
    REQUESTS,
)


async def test_a_batch_is_open_from_its_opening_to_its_end(sessions: Sessions) -> None:
    async with transaction(sessions) as session:
        history = BatchHistory(session)
        assert await history.opened(OPENED)
        assert await history.still_open() == [OPENED]
        assert await history.is_open("b1")
        await history.first_arrival("b1", 1_763_700_004.5, 1_763_700_020.0)
        assert await history.still_open() == [replace(OPENED, first_arrival_at=1_763_700_004.5)]
        assert await history.ended(ENDED)
        assert await history.still_open() == []
        assert not await history.is_open("b1")


async def test_measurements_are_read_as_written(sessions: Sessions) -> None:
    async with transaction(sessions) as session:
        await BatchHistory(session).opened(OPENED)
        await BatchHistory(session).ended(ENDED)
    async with transaction(sessions) as session:
        (last,) = await BatchHistory(session).recent("ada", "kernels", 3, 5)
        requests = await BatchHistory(session).requests("b1")
    assert last.opened == replace(OPENED, first_arrival_at=ENDED.first_arrival_at)
    assert repr(requests) == repr(REQUESTS)  # repr: NaN is not equal to itself
    assert repr(last.record) == repr(REQUESTS.record(len(STAGES)))


async def test_a_batch_written_twice_changes_nothing(sessions: Sessions) -> None:
    for requests in (REQUESTS, replace(REQUESTS, arrival_s=(0.0, 9.0, 9.0))):
        async with transaction(sessions) as session:
            history = BatchHistory(session)
            new = [await history.opened(OPENED), await history.ended(replace(ENDED, requests=requests))]
            assert new == [requests is REQUESTS] * 2
    async with transaction(sessions) as session:
        assert repr(await BatchHistory(session).requests("b1")) == repr(REQUESTS)


async def test_the_first_report_of_the_first_arrival_counts(sessions: Sessions) -> None:
    async with transaction(sessions) as session:
        history = BatchHistory(session)
        await history.opened(OPENED)
        for at in (5.0, 7.0):
            await history.first_arrival("b1", at)
        assert [batch.first_arrival_at for batch in await history.still_open()] == [5.0]


async def test_a_batch_without_a_seen_opening_is_kept_and_teaches_nothing(sessions: Sessions) -> None:
    async with transaction(sessions) as session:
        assert await BatchHistory(session).ended(ENDED)
        assert await BatchHistory(session).requests("b1") is not None
        assert await BatchHistory(session).recent("ada", "kernels", None, 5) == []


async def test_the_newest_complete_batches_of_the_task_and_size_are_learned_from(sessions: Sessions) -> None:
    async with transaction(sessions) as session:
        history = BatchHistory(session)
        for name, task, size, state, at in (
            ("oldest", "kernels", 3, "complete", 5.0),
            ("old", "kernels", 3, "complete", 10.0),
            ("new", "kernels", 3, "complete", 20.0),
            ("larger", "kernels", 4, "complete", 25.0),
            ("sealed", "kernels", None, "complete", 26.0),
            ("cancelled", "kernels", 3, "cancelled", 30.0),
            ("other", "proofs", 3, "complete", 40.0),
            ("empty", "kernels", 3, "complete", 50.0),
        ):
            await history.opened(replace(OPENED, batch=name, task=task, size=size))
            end = replace(ENDED, batch=name, task=task, ended_at=at, tokens_per_s=at)
            end = replace(end, state="cancelled") if state == "cancelled" else end
            await history.ended(replace(end, requests=None, answered=0) if name == "empty" else end)

        async def recent(tenant: str, size: int | None) -> list[tuple[str, float | None]]:
            found = await history.recent(tenant, "kernels", size, 2)
            return [(past.opened.batch, past.tokens_per_s) for past in found]

        assert await recent("ada", 3) == [("old", 10.0), ("new", 20.0)]
        assert await recent("ada", 4) == [("larger", 25.0)]
        assert await recent("ada", None) == [("sealed", 26.0)]
        assert await recent("eve", 3) == []


async def test_a_failed_transaction_leaves_nothing(sessions: Sessions) -> None:
    async def store_half() -> None:
        async with transaction(sessions) as session:
            await BatchHistory(session).opened(OPENED)
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        await store_half()
    async with transaction(sessions) as session:
        assert await BatchHistory(session).still_open() == []


async def test_old_batches_go_with_their_requests_and_open_ones_stay(sessions: Sessions) -> None:
    async with transaction(sessions) as session:
        history = BatchHistory(session)
        await history.opened(replace(OPENED, batch="open", opened_at=1.0))
        await history.ended(replace(ENDED, batch="old", ended_at=10.0))
        await history.ended(replace(ENDED, batch="new", ended_at=20.0))
        assert await history.prune(20.0) == 1
        assert await history.requests("old") is None
        assert await history.requests("new") is not None
        assert [batch.batch for batch in await history.still_open()] == ["open"]


def test_requests_become_the_record_that_the_policy_takes() -> None:
    record = REQUESTS.record(stages=3)
    assert isinstance(record, BatchRecord)
    assert record.span_s == 7.5 + 3.0 + 6.0
    assert [math.isnan(time) for time in record.executions_s[1]] == [False, True, False]
    assert [math.isnan(time) for time in record.executions_s[2]] == [True, True, True]


@pytest.mark.parametrize(
    "wrong",
    [{"overhead_s": (0.0,)}, {"queue_s": REQUESTS.queue_s[:1]}, {"units": ((1,), (1,))}, {"execution_s": ()}],
)
def test_columns_of_different_lengths_are_refused(wrong: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(ValueError, match="every column of a batch"):
        replace(REQUESTS, **wrong)  # type: ignore[arg-type]  # wrong on purpose


async def test_plans_are_read_newest_first_and_the_last_one_of_a_pool_is_its_target(sessions: Sessions) -> None:
    plans = [
        StoredPlan(1.0, "cpu@host", None, 4, {"summary": "no history"}),
        StoredPlan(1.0, "gpu@host", None, 1, {"summary": "no history"}),
        StoredPlan(2.0, "cpu@host", 4, 2, {"summary": "two do", "batches": ["b1"]}),
    ]
    async with transaction(sessions) as session:
        await Plans(session).add([])
        await Plans(session).add(plans)
        assert await Plans(session).newest() == plans[::-1]
        assert await Plans(session).newest(pool="cpu@host", limit=1) == plans[2:]
        assert await Plans(session).targets() == {"cpu@host": 2, "gpu@host": 1}
        await Plans(session).prune(2.0)
        assert await Plans(session).newest() == plans[2:]
