"""`answer_actions`: one answer an action, and the end of its batch with the last of them."""

from __future__ import annotations

import json

import pytest

from shared.bus.batches import end_batch, read_environments
from shared.bus.connection import command
from shared.bus.functions import (
    Advancing,
    Answering,
    Deposed,
    Granting,
    Submission,
    advance_stages,
    journal_actions,
    send_grants,
)
from shared.bus.quotas import change_holds, read_quotas
from shared.bus.trajectories import open_trajectory
from shared.messages.environments import EnvironmentSpec
from shared.messages.outcomes import ANSWERED, OUTCOMES, Answered, Finished
from shared.policy.model.quotas import QuotaHold, Settled
from shared.policy.model.results import MOST_USED, AttemptResult
from tests.shared.bus.journal import KEEP_ACTION_S, KEEP_BATCH_S, Journal, lead, resign


async def test_an_answer_takes_the_place_of_the_journal_entry(journal: Journal) -> None:
    entry = await journal.entry("a1")

    assert await journal.finish("a1", entry, answer=b"first")

    assert await journal.unanswered() == []
    assert (await journal.fields("action:a1"))["answer"] == b"first"


async def test_the_first_answer_counts(journal: Journal) -> None:
    entry = await journal.entry("a1")
    await journal.finish("a1", entry, answer=b"first")

    assert not await journal.finish("a1", entry, answer=b"second")
    assert (await journal.fields("action:a1"))["answer"] == b"first"
    assert len(await journal.messages(ANSWERED)) == 1


async def test_of_two_answers_in_one_call_the_first_counts(journal: Journal) -> None:
    await journal.open()
    entry = await journal.entry("a1", "b")

    flags = await journal.finish_all(
        Answering("a1", entry, "b", b"first", KEEP_ACTION_S), Answering("a1", entry, "b", b"second", KEEP_ACTION_S)
    )

    assert flags == [True, False]
    assert await journal.results() == [b"first"]
    assert await journal.counts() == ("open", 1, 1)


async def test_answers_of_a_batch_lie_in_its_results_in_their_order(journal: Journal) -> None:
    await journal.open()
    entries = {action: await journal.entry(action, "b") for action in ("a1", "a2")}
    for action in ("a2", "a1"):
        await journal.finish(action, entries[action], "b", action.encode())

    assert await journal.results() == [b"a2", b"a1"]
    result = (await journal.fields("action:a1"))["result"].decode()
    ((_, fields),) = await command(journal.redis, "XRANGE", "results:b", result, result)
    assert fields[1] == b"a1"


async def test_an_answer_drops_the_marks_of_its_grants(journal: Journal) -> None:
    entry = await journal.entry("a1")
    await advance_stages(journal.redis, journal.epoch, [Advancing("a1", 1, b"[]")])
    await send_grants(journal.redis, journal.epoch, [Granting("grants.n.1", b"m", "a1", "1:n")])
    assert {"grant", "stage", "carried"} <= (await journal.fields("action:a1")).keys()

    await journal.finish("a1", entry)

    assert (await journal.fields("action:a1")).keys() == {"digest", "entry", "batch", "answer"}


async def reported(journal: Journal, action: str) -> str:
    """An outcome in its stream; its entry."""
    outcome = Finished(
        action=action, node="n", incarnation="1", epoch=1, attempt=1, stage=0, result=AttemptResult("ok")
    )
    entry: bytes = await command(journal.redis, "XADD", OUTCOMES.name, "*", "m", OUTCOMES.encode(outcome))
    return entry.decode()


async def outcomes(journal: Journal) -> list[str]:
    """Actions whose outcomes are in the stream."""
    return [one.action for one in await journal.messages(OUTCOMES) if isinstance(one, Finished)]


async def test_an_answer_drops_the_outcome_that_it_rests_on_and_no_other(journal: Journal) -> None:
    await journal.open()
    items = [
        Answering(action, await journal.entry(action, batch), batch, b"{}", KEEP_ACTION_S, "ada", outcome=outcome)
        for action, batch, outcome in (
            ("a1", "b", await reported(journal, "a1")),
            ("a2", "", await reported(journal, "a2")),
            ("a3", "", ""),
        )
    ]
    await reported(journal, "a4")

    assert await journal.finish_all(*items) == [True, True, True]
    assert await outcomes(journal) == ["a4"]
    assert await journal.finish_all(*items) == [False, False, False], "a repeat is harmless"
    assert await outcomes(journal) == ["a4"]


async def test_a_step_to_the_next_stage_drops_the_outcome_of_the_stage_before(journal: Journal) -> None:
    await journal.entry("a1")
    read, _ = await reported(journal, "a1"), await reported(journal, "a2")

    await advance_stages(journal.redis, journal.epoch, [Advancing("a1", 1, b"[]", read)])

    assert await outcomes(journal) == ["a2"]


async def test_a_deposed_leader_drops_no_outcome(journal: Journal) -> None:
    entry, read = await journal.entry("a1"), await reported(journal, "a1")
    await resign(journal.redis, "me")
    await lead(journal.redis, "you", 30.0)

    with pytest.raises(Deposed):
        await journal.finish_all(Answering("a1", entry, "", b"{}", KEEP_ACTION_S, "ada", outcome=read))
    with pytest.raises(Deposed):
        await advance_stages(journal.redis, journal.epoch, [Advancing("a1", 1, b"[]", read)])

    assert await outcomes(journal) == ["a1"]


async def test_wake_ups_are_kept_for_some_seconds(journal: Journal) -> None:
    for number in range(300):  # streams are cut in nodes of up to 100 entries
        await command(journal.redis, "XADD", ANSWERED.name, f"1000-{number + 1}", "m", b"old")
    await journal.finish("a1", await journal.entry("a1"))

    assert await command(journal.redis, "XLEN", ANSWERED.name) <= 100
    ((_, newest),) = await command(journal.redis, "XREVRANGE", ANSWERED.name, "+", "-", "COUNT", 1)
    assert ANSWERED.decode(newest[1]) == Answered(actions=["a1"], batches=[])


async def test_an_answer_outside_a_batch_is_kept_for_its_own_time(journal: Journal) -> None:
    entry = await journal.entry("a1")
    assert await journal.ttl_s("action:a1") == -1

    await journal.finish("a1", entry)

    assert KEEP_ACTION_S - 5 < await journal.ttl_s("action:a1") <= KEEP_ACTION_S


async def test_a_batch_is_kept_from_its_end_on(journal: Journal) -> None:
    await journal.open(size=2)
    first, second = [await journal.entry(action, "b") for action in ("a1", "a2")]
    await journal.finish("a1", first, "b")
    assert [await journal.ttl_s(key) for key in ("batch:b", "results:b")] == [-1, -1]

    await journal.finish("a2", second, "b")

    for key in ("batch:b", "action:a2"):
        assert KEEP_BATCH_S - 5 < await journal.ttl_s(key) <= KEEP_BATCH_S
    assert await journal.ttl_s("results:b") > KEEP_BATCH_S, "the archiver frees them, and the keys of their actions"


async def test_the_last_answer_completes_a_batch_of_known_size_and_reports_it_once(journal: Journal) -> None:
    await journal.open(size=2)
    first, second = [await journal.entry(action, "b") for action in ("a1", "a2")]

    await journal.finish("a1", first, "b")
    assert (await journal.counts(), await journal.ended()) == (("open", 2, 1), [])

    await journal.finish("a2", second, "b")
    await journal.finish("a2", second, "b")
    assert await journal.counts() == ("complete", 2, 2)
    (ended,) = await journal.ended()
    assert (ended.batch, ended.tenant, ended.task, ended.state, ended.size) == ("b", "ada", "t", "complete", 2)


async def test_the_end_of_a_batch_reports_its_times_in_seconds(journal: Journal) -> None:
    await journal.open(size=1)
    await journal.finish("a1", await journal.entry("a1", "b"), "b")

    fields = await journal.batch()
    (ended,) = await journal.ended()
    times = (ended.opened_at, ended.first_at, ended.ended_at)
    assert times == tuple(int(fields[name]) / 1000 for name in ("opened_ms", "first_ms", "ended_ms"))


async def test_an_open_batch_of_unknown_size_continues_when_all_are_answered(journal: Journal) -> None:
    await journal.open()
    await journal.finish("a1", await journal.entry("a1", "b"), "b")

    assert await journal.counts() == ("open", 1, 1)
    assert await journal.ended() == []


@pytest.mark.parametrize(
    ("state", "ends_as"), [("sealed", "complete"), ("cancelled", "cancelled"), ("abandoned", "abandoned")]
)
async def test_a_batch_that_was_ended_short_is_over_with_its_last_answer(
    journal: Journal, state: str, ends_as: str
) -> None:
    await journal.open(size=9)
    first, second = [await journal.entry(action, "b") for action in ("a1", "a2")]
    await journal.finish("a1", first, "b")
    assert await journal.end("b", state) == state
    assert await journal.ended() == []

    await journal.finish("a2", second, "b")

    assert [(one.state, one.size) for one in await journal.ended()] == [(ends_as, 2)]
    assert await command(journal.redis, "ZCARD", "batches:open") == 0


async def test_one_message_names_all_that_was_answered_now(journal: Journal) -> None:
    await journal.open()
    entries = [await journal.entry(action, batch) for action, batch in (("a1", "b"), ("a2", ""), ("a3", "b"))]
    await journal.finish("a1", entries[0], "b")

    await journal.finish_all(
        Answering("a1", entries[0], "b", b"again", KEEP_ACTION_S),
        Answering("a2", entries[1], "", b"", KEEP_ACTION_S),
        Answering("a3", entries[2], "b", b"", KEEP_ACTION_S),
    )

    assert await journal.messages(ANSWERED) == [
        Answered(actions=["a1"], batches=["b"]),
        Answered(actions=["a2", "a3"], batches=["b"]),
    ]


async def test_an_answer_outside_batches_names_no_batch(journal: Journal) -> None:
    await journal.finish("a1", await journal.entry("a1"))

    assert await journal.messages(ANSWERED) == [Answered(actions=["a1"], batches=[])]


async def open_in(journal: Journal, trajectory: str, batch: str = "b") -> None:
    """Open a trajectory that names a batch, or none."""
    fields = {"class": "default"} | ({"batch": batch} if batch else {})
    await open_trajectory(
        journal.redis, trajectory, EnvironmentSpec(), idempotency_key="", digest=b"", most=8, keep_s=60,
        node_class="default", fields=fields,
    )  # fmt: skip


async def act(journal: Journal, action: str, trajectory: str) -> Answering:
    """Accept an action in a trajectory; its answer."""
    submission = Submission(action, b"d", "", b"m", trajectory, "ada")
    ((_, entry),) = await journal_actions(journal.redis, [submission], max_journal=100)
    return Answering(action, entry, "", b"{}", KEEP_ACTION_S, "ada", trajectory=trajectory)


async def test_masked_answers_in_trajectories_are_counted_for_the_batch_once_each(journal: Journal) -> None:
    await journal.open()
    await open_in(journal, "t1")
    await open_in(journal, "t2", batch="")
    for action, trajectory, masked, used in (
        ("a1", "t1", "refused no such image", b""),
        ("a2", "t1", "", b'{"cpu_s":1.5,"tokens":7}'),
        ("a3", "t2", "refused counted for nobody", b'{"cpu_s":9}'),
        ("a4", "t1", "refused the newest", b'{"cpu_s":0.25}'),
    ):
        answering = (await act(journal, action, trajectory))._replace(masked=masked, used=used)
        await journal.finish_all(answering)
        await journal.finish_all(answering)

    flat = await command(journal.redis, "HGETALL", "environments:b")
    assert dict(zip(flat[::2], flat[1::2], strict=True)) == {
        b"answered": b"3",
        b"count:refused": b"2",
        b"why:refused": b"the newest",
        b"used:cpu_s": b"1.75",
        b"used:tokens": b"7",
    }
    await end_batch(journal.redis, "b", "cancelled", keep_batch_s=7)
    assert await command(journal.redis, "TTL", "environments:b") == 7


async def test_usage_of_a_batch_has_a_bounded_number_of_names(journal: Journal) -> None:
    """Executors choose the names; `added` has the same bound."""
    await journal.open()
    await open_in(journal, "t1")
    for number in range(2):
        used = {f"name{number}-{each}": 1.0 for each in range(MOST_USED - 1)}
        answering = (await act(journal, f"a{number}", "t1"))._replace(used=json.dumps(used).encode())
        await journal.finish_all(answering)
    again = await act(journal, "a2", "t1")
    await journal.finish_all(again._replace(used=b'{"name0-0": 2.0}'))

    counts = await read_environments(journal.redis, "b")
    assert counts is not None
    assert len(counts.used) == MOST_USED
    assert counts.used["name0-0"] == 3.0
    assert {f"name0-{each}" for each in range(MOST_USED - 1)} < counts.used.keys()


async def test_an_answer_that_ends_a_hold_counts_for_the_batch_of_its_trajectory(journal: Journal) -> None:
    await journal.open()
    await open_in(journal, "t1")
    answering = await act(journal, "a1", "t1")
    hold = QuotaHold("a1", 0, 1, "n", "1", 5.0, {"search": 1.0})
    await change_holds(journal.redis, journal.epoch, [hold])
    await journal.finish_all(answering._replace(settled=(Settled(hold.key, "a1"),)))

    counts = await read_environments(journal.redis, "b")
    assert counts is not None
    assert counts.answered == 1
    assert (await read_quotas(journal.redis)).holds == []
