"""The leader between streams and dispatcher: its writes for each entry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY
from redis.asyncio import Redis

from services.proxy.leader.leader import Leader
from shared.bus.functions import Answering, Granting
from shared.bus.tail import Tail
from shared.messages.actions import CancelRequested
from shared.messages.batches import BATCHES, RolloutProgress
from shared.messages.grants import Granted, InventoryRequested, Revoked, ShareSet
from shared.messages.nodes import NODES, Bye
from shared.messages.outcomes import Started
from shared.messages.targets import TARGETS, CompletionExpected, TargetSet
from tests.services.proxy.mesh import (
    EPOCH,
    START,
    StillClock,
    WriteRecorder,
    answers,
    discards,
    entry,
    from_node,
    granted,
    held,
    hello,
    inventory,
    journalled,
    leader_of,
    messages_to,
    outcome,
    stage,
    steps,
    submitted,
)


class LeaderDriver:
    """A leader with one node of four cores that has sent its inventory."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.recorder = WriteRecorder()
        self.leader: Leader = leader_of(self.recorder, self.clock)

    def take(self, *entries: Any) -> list[Any]:
        self.leader.take(list(entries))
        self.leader.dispatcher.check()
        return self.recorder.take()


@pytest.fixture
def driver() -> LeaderDriver:
    driver = LeaderDriver()
    driver.take(from_node(hello()), from_node(inventory()))
    return driver


def body(answer: Answering) -> dict[str, Any]:
    return msgspec.json.decode(answer.answer, type=dict[str, Any])


def test_a_node_gets_nothing_before_its_inventory() -> None:
    driver = LeaderDriver()

    writes = driver.take(journalled(submitted("a")), from_node(hello()))
    assert messages_to(writes) == [InventoryRequested(epoch=EPOCH)]

    assert [one.action for one in granted(driver.take(from_node(inventory())))] == ["a"]


def test_an_inventory_for_another_leader_does_not_count() -> None:
    driver = LeaderDriver()
    driver.take(journalled(submitted("a")), from_node(hello()))

    assert driver.take(from_node(inventory(epoch=EPOCH - 1))) == []


def test_a_request_becomes_a_grant_with_everything_the_node_needs(driver: LeaderDriver) -> None:
    work = stage(cores=2, timeout_s=9.0)

    (write,) = driver.take(journalled(submitted("a", work, budget_s=100.0)))

    assert isinstance(write, Granting)
    assert (write.action, write.mark) == ("a", "1:n")
    assert granted([write]) == [
        Granted(
            action="a", epoch=EPOCH, attempt=1, tenant="ada", stage=0, work="code.run", params=b"{}",
            units={"cores": 2}, timeout_s=9.0, budget_s=100.0,
        )
    ]  # fmt: skip


def test_an_entry_that_is_read_again_changes_nothing(driver: LeaderDriver) -> None:
    first = journalled(submitted("a"))
    driver.take(first)

    assert driver.take(first) == []


def test_a_verdict_becomes_the_answer_of_its_journal_entry(driver: LeaderDriver) -> None:
    request = journalled(submitted("a", batch="b"), index=3)
    driver.take(request)
    driver.clock.now += 2.0

    (answer,) = driver.take(from_node(outcome("a", score=0.5, output=b'{"x":1}')))

    assert (answer.action, answer.entry, answer.batch, answer.keep_s) == ("a", request.id, "b", 60)
    read = body(answer)
    assert (read["ended"], read["score"], read["index"], read["output"]) == ("ok", 0.5, 3, {"x": 1})
    assert (read["arrived_at"], read["act"]["total_s"], read["act"]["execution_s"]) == (START, 2.0, 0.5)
    assert driver.leader.unanswered == {}


def test_usage_reaches_the_answer_and_the_metrics_by_documented_names(driver: LeaderDriver) -> None:
    names = ("cpu_s", "gpu_s", "tokens", "money", "other")
    before = [REGISTRY.get_sample_value("treadle_proxy_usage_total", {"name": name}) or 0.0 for name in names]
    driver.take(journalled(submitted("a")))
    usage = {"cpu_s": 1.5, "tokens": 7.0, "disk_gb": 2.0}

    (answer,) = driver.take(from_node(outcome("a", usage=usage)))

    assert (body(answer)["usage"], body(answer)["stages"][0]["usage"]) == (usage, usage)
    after = [REGISTRY.get_sample_value("treadle_proxy_usage_total", {"name": name}) or 0.0 for name in names]
    assert [new - old for new, old in zip(after, before, strict=True)] == [1.5, 0.0, 7.0, 0.0, 2.0]


def test_a_repeated_outcome_answers_once(driver: LeaderDriver) -> None:
    driver.take(journalled(submitted("a")))

    assert len(driver.take(from_node(outcome("a")), from_node(outcome("a")))) == 1
    assert driver.take(from_node(outcome("a"))) == []


def test_of_two_verdicts_in_one_read_the_answer_is_the_first(driver: LeaderDriver) -> None:
    driver.take(journalled(submitted("a")))

    (answer,) = driver.take(
        from_node(outcome("a", score=0.25)), from_node(outcome("a", attempt=2, passed=False, score=0.0))
    )

    assert (body(answer)["passed"], body(answer)["score"]) == (True, 0.25)


def test_a_late_repeat_of_an_earlier_stage_does_not_lend_its_score(driver: LeaderDriver) -> None:
    driver.take(journalled(submitted("a", stage("compile"), stage("run"))))
    driver.take(from_node(outcome("a", stage=0, score=1.0)))

    last, repeat = outcome("a", stage=1, passed=False, score=0.0), outcome("a", stage=0, score=1.0)
    (answer,) = driver.take(from_node(last), from_node(repeat))

    assert (body(answer)["passed"], body(answer)["score"]) == (False, 0.0)


def test_two_stages_that_end_in_one_read_are_both_counted(driver: LeaderDriver) -> None:
    driver.take(journalled(submitted("a", stage("compile"), stage("run"))))

    writes = driver.take(
        from_node(outcome("a", stage=0, execution_s=1.0)), from_node(outcome("a", stage=1, execution_s=2.0))
    )

    assert [one["execution_s"] for one in body(answers(writes)[0])["stages"]] == [1.0, 2.0]
    assert answers(writes)[0].unqueued_end_ms == round(1000 * (START + 1.0 + 2.0)), "it arrived, and was executed"


def test_a_stage_that_passed_moves_the_request_on_with_what_was_measured(driver: LeaderDriver) -> None:
    driver.take(journalled(submitted("a", stage("compile"), stage("run"))))

    writes = driver.take(from_node(outcome("a", execution_s=1.5)))

    (step,) = steps(writes)
    assert (step.action, step.stage) == ("a", 1)
    assert [(one["name"], one["execution_s"]) for one in msgspec.json.decode(step.carried)] == [("compile", 1.5)]
    assert [(one.stage, one.attempt) for one in granted(writes)] == [(1, 1)]
    assert writes.index(step) < writes.index(next(one for one in writes if isinstance(one, Granting)))


def test_each_write_names_the_outcome_it_is_based_on_once(driver: LeaderDriver) -> None:
    driver.take(journalled(submitted("a", stage("compile"), stage("run"))), journalled(submitted("b")))
    compiled, ran, refused = (
        from_node(outcome("a")),
        from_node(outcome("a", stage=1)),
        from_node(outcome("b", status="refused")),
    )

    (step,) = steps(driver.take(compiled))
    assert step.outcome == compiled.id
    assert [one.outcome for one in answers(driver.take(ran, refused))] == [ran.id, refused.id]


def test_an_answer_without_a_new_outcome_drops_none(driver: LeaderDriver) -> None:
    driver.take(journalled(submitted("a", stage("compile"), stage("run"))))
    driver.take(from_node(outcome("a")))
    driver.take(journalled(CancelRequested(action="a", reason="asked")))

    (answer,) = answers(driver.take(from_node(outcome("a", stage=1, status="cancelled", passed=None, score=None))))

    assert (body(answer)["ended"], answer.outcome) == ("cancelled", "")


def test_a_failed_stage_is_the_end(driver: LeaderDriver) -> None:
    driver.take(journalled(submitted("a", stage("compile"), stage("run"))))

    (answer,) = driver.take(from_node(outcome("a", passed=False, score=0.0)))

    assert (body(answer)["passed"], len(body(answer)["stages"])) == (False, 1)


def test_a_timeout_has_the_tasks_score(driver: LeaderDriver) -> None:
    driver.take(journalled(submitted("a")))

    (answer,) = driver.take(from_node(outcome("a", status="timeout", passed=None, score=None)))

    assert (body(answer)["ended"], body(answer)["score"], "mask" in body(answer)) == ("timeout", -1.0, False)


def test_lost_work_runs_again_and_is_masked_in_the_end(driver: LeaderDriver) -> None:
    driver.take(journalled(submitted("a")))
    lost: dict[str, Any] = {"status": "lost", "passed": None, "score": None, "reason": "the walls fell"}

    for attempt in (1, 2):
        writes = driver.take(from_node(outcome("a", attempt=attempt, **lost)))
        assert [one.attempt for one in granted(writes)] == [attempt + 1]
    (answer,) = driver.take(from_node(outcome("a", attempt=3, **lost)))

    assert (body(answer)["ended"], body(answer)["mask"], "score" in body(answer)) == ("sandbox-lost", True, False)


def test_a_rejection_is_reported_and_masked(driver: LeaderDriver) -> None:
    driver.take(journalled(submitted("a")))

    (answer,) = driver.take(
        from_node(outcome("a", status="refused", passed=None, score=None, reason="no such language"))
    )

    assert (body(answer)["ended"], body(answer)["mask"]) == ("refused", True)
    assert body(answer)["reason"] == "no such language"


def test_a_queued_action_is_cancelled_at_once_and_the_entry_discarded(driver: LeaderDriver) -> None:
    driver.take(journalled(submitted("big", stage(cores=4))), journalled(submitted("a")))
    wish = journalled(CancelRequested(action="a", reason="not needed"))

    answer, discard = driver.take(wish)

    assert (answer.action, body(answer)["ended"], body(answer)["reason"]) == ("a", "cancelled", "not needed")
    assert discards([discard]) == [wish.id]


def test_a_running_action_is_revoked_and_answered_when_the_node_confirms(driver: LeaderDriver) -> None:
    driver.take(journalled(submitted("a")), from_node(Started(action="a", node="n", epoch=EPOCH, attempt=1)))

    writes = driver.take(journalled(CancelRequested(action="a")))
    assert messages_to(writes) == [Revoked(action="a", epoch=EPOCH, attempt=1)]
    assert answers(writes) == []

    (answer,) = driver.take(from_node(outcome("a", status="cancelled", passed=None, score=None)))
    assert body(answer)["ended"] == "cancelled"


def test_a_cancelled_batch_takes_its_queued_requests_with_it(driver: LeaderDriver) -> None:
    driver.take(*(journalled(submitted(f"a{number}", stage(cores=4), batch="b")) for number in range(3)))

    writes = driver.take(journalled(CancelRequested(batch="b", reason="cancelled")))

    assert sorted(one.action for one in answers(writes)) == ["a1", "a2"]
    assert [type(one) for one in messages_to(writes)] == [Revoked]


def test_a_cancellation_counts_for_earlier_submissions_only(driver: LeaderDriver) -> None:
    driver.take(journalled(submitted("big", stage(cores=4))))

    before, wish, after = [
        journalled(submitted("a1", batch="b")),
        journalled(CancelRequested(batch="b")),
        journalled(submitted("a2", batch="b")),
    ]
    writes = driver.take(before, wish, after)

    assert [one.action for one in answers(writes)] == ["a1"]
    assert "a2" in driver.leader.unanswered


def test_outcomes_before_an_inventory_are_taken_before_it(driver: LeaderDriver) -> None:
    """Otherwise finished work would be treated as lost."""
    driver.take(journalled(submitted("a")))
    driver.clock.now += 60.0  # overdue: the leader asks again
    assert InventoryRequested(epoch=EPOCH) in messages_to(driver.take(from_node(hello(), at=driver.clock.now)))

    writes = driver.take(from_node(outcome("a")), from_node(inventory()))

    assert [body(one)["ended"] for one in answers(writes)] == ["ok"]
    assert granted(writes) == []


def test_a_held_grant_that_no_request_needs_is_revoked() -> None:
    driver = LeaderDriver()
    driver.take(from_node(hello()))

    assert messages_to(driver.take(from_node(inventory(held("gone", attempt=2))))) == [
        Revoked(action="gone", epoch=EPOCH, attempt=2)
    ]


def test_a_target_is_kept_with_its_reason(driver: LeaderDriver) -> None:
    target = TargetSet(pool="cores@default", units=2, decided_at=START, reason="quiet")

    driver.take(entry(TARGETS, target))

    assert driver.leader.reasons == {"cores@default": "quiet"}
    assert driver.leader.dispatcher.target("cores@default") == 2


def test_an_earlier_expected_completion_goes_first(driver: LeaderDriver) -> None:
    driver.take(
        journalled(submitted("big", stage(cores=4))),
        journalled(submitted("late", stage(cores=4, timeout_s=100.0), batch="b1")),
        journalled(submitted("soon", stage(cores=4, timeout_s=100.0), batch="b2")),
    )

    driver.take(entry(TARGETS, CompletionExpected(batch="b2", at=START + 1)))

    assert [one.action for one in granted(driver.take(from_node(outcome("big"))))] == ["soon"]


def test_without_a_planner_the_nodes_own_units_for_all_work(driver: LeaderDriver) -> None:
    target = TargetSet(pool="cores@default", units=0, decided_at=START, reason="no batch is open")
    driver.take(entry(TARGETS, target), *(journalled(submitted(name, batch="b")) for name in "abc"))
    driver.leader.planned(planned=True)
    assert driver.recorder.take() == []

    driver.leader.planned(planned=False)

    writes = driver.recorder.take()
    assert messages_to(writes)[0] == ShareSet(epoch=EPOCH, resource="cores", units=3)
    assert [one.action for one in granted(writes)] == ["b", "c"]


def test_progress_of_a_rollout_is_for_the_planner_alone(driver: LeaderDriver) -> None:
    reported = RolloutProgress(batch="b", at=START, generating=3, tokens=17.0)

    assert driver.take(entry(BATCHES, reported), journalled(submitted("a", batch="b")))
    assert driver.take(entry(BATCHES, reported)) == []


class ScriptedReads(Tail):
    """Reads that return these entries."""

    def __init__(self, reader: Redis, *reads: list[Any]) -> None:
        super().__init__(reader, {NODES: "0"})
        self._reads = reads

    async def batches(self, blocks: Callable[[], bool] = lambda: True) -> AsyncIterator[list[Any]]:
        for entries in self._reads:
            yield entries


@pytest.mark.parametrize("left", [Bye(node="n", incarnation="1"), hello(incarnation="2")])
async def test_work_that_a_node_has_finished_before_it_left_counts(
    driver: LeaderDriver, reader: Redis, left: Any
) -> None:
    """The outcome and the end of the incarnation are on two streams, and that of nodes is read first."""
    once = msgspec.structs.replace(stage(), repeatable=False)
    driver.take(journalled(submitted("a", once)), journalled(submitted("b")), from_node(hello("m")))
    driver.take(from_node(inventory(node="m")))

    await driver.leader.run(
        ScriptedReads(reader, [entry(NODES, left), from_node(outcome("a")), from_node(outcome("b"))])
    )

    writes = driver.recorder.take()
    assert [(one.action, body(one)["ended"]) for one in answers(writes)] == [("a", "ok"), ("b", "ok")]
    assert granted(writes, "m") == [], "no work is executed again"
    assert not driver.leader.dispatcher.has_node("n", "1")


class EmptyReads(Tail):
    """Handle empty reads, with time passing before each."""

    def __init__(self, reader: Redis, clock: StillClock, *pauses: float) -> None:
        super().__init__(reader, {NODES: "0"})
        self._clock = clock
        self._pauses = pauses

    async def batches(self, blocks: Callable[[], bool] = lambda: True) -> AsyncIterator[list[Any]]:
        for pause in self._pauses:
            self._clock.now += pause
            yield []


@pytest.mark.parametrize(
    ("pauses", "known"), [((30.0,), True), ((2.5,) * 5, False)], ids=["valkey was away", "the node was silent"]
)
async def test_silence_while_valkey_was_away_does_not_count_against_nodes(
    driver: LeaderDriver, reader: Redis, pauses: tuple[float, ...], known: bool
) -> None:
    await driver.leader.run(EmptyReads(reader, driver.clock, *pauses))

    assert ("n" in driver.leader.dispatcher.node_names()) == known


async def test_a_deposed_leader_stops_at_its_next_turn(reader: Redis) -> None:
    driver = LeaderDriver()
    driver.recorder.deposed = True

    await driver.leader.run(Tail(reader, {NODES: "0"}, block_s=0.01))

    assert driver.recorder.take() == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"stages": ()}, "no stages"),
        ({"stages": (msgspec.structs.replace(stage(), cost={"slots": (-5, 2)}),)}, "units that cannot be"),
        ({"stages": (msgspec.structs.replace(stage(), cost={"slots": (2, 1)}),)}, "units that cannot be"),
        ({"stages": (msgspec.structs.replace(stage(), timeout_s=float("inf")),)}, "no time limit"),
        ({"budget_s": float("nan")}, "not finite"),
    ],
)
def test_an_entry_that_cannot_be_scheduled_is_answered_and_harms_no_other(
    driver: LeaderDriver, change: dict[str, Any], why: str
) -> None:
    """Every later leader would read it again."""
    poison = msgspec.structs.replace(submitted("poison"), **change)

    writes = driver.take(journalled(poison), journalled(submitted("a")))

    (answer,) = answers(writes)
    assert (answer.action, body(answer)["ended"], body(answer)["mask"]) == ("poison", "refused", True)
    assert why in body(answer)["reason"]
    assert [one.action for one in granted(writes)] == ["a"]
