"""Prefetch: work that may enter a node queue, its order, and how it leaves the queue."""

from __future__ import annotations

import pytest

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.prefetch import HORIZON_S, MOST, RECALL_S
from shared.policy.dispatch.stimuli import (
    ActionCancelled,
    ActionRestored,
    InventoryReported,
    NodeLost,
    NodeSeen,
    TickPassed,
)
from shared.policy.model.formulation import AnswerAction, AskInventory, Command, Grant, Request, Revoke, Work
from shared.policy.model.reports import Ended, HeldGrant
from shared.policy.model.results import AttemptResult, ExecutionStatus
from tests.shared.policy.strategies import CORES, SPECS, joined, node, reported, request, submitted, work

SHORT_S = HORIZON_S / 4
LATE_S = 30.0
"""Time at which actions granted at 0 are overdue."""


def short_work(*names: str, cores: int = 2, prefetches: bool = True, lasts_s: float = SHORT_S) -> Dispatcher:
    """A leader of nodes with two cores that has learned this duration of kind `run`."""
    dispatcher = Dispatcher(specs=SPECS)
    for name in names or ("n",):
        meet(dispatcher, name, cores=cores, prefetches=prefetches)
    (grant,) = grants(dispatcher.handle(0.0, submitted(request("known"))))
    dispatcher.handle(0.0, reported(end(grant, lasts_s)))
    return dispatcher


def meet(
    dispatcher: Dispatcher,
    name: str,
    held: dict[str, HeldGrant] | None = None,
    *,
    cores: int = 2,
    incarnation: str = "1",
    prefetches: bool = True,
) -> list[Command]:
    met = node(name, {"cores": cores}, incarnation=incarnation, kinds="run judge")
    met.prefetches = frozenset({"cores"} if prefetches else {"slots"})
    now = 0.0
    dispatcher.handle(now, joined(met))
    commands = dispatcher.handle(now, InventoryReported(name, incarnation, held or {}))
    dispatcher.check()
    return commands


def end(grant: Grant, lasted_s: float = SHORT_S, status: ExecutionStatus = "ok") -> Ended:
    return Ended(
        grant.action, grant.node, grant.attempt, grant.stage, AttemptResult(status, True), execution_s=lasted_s
    )


def grants(commands: list[Command]) -> list[Grant]:
    return [command for command in commands if isinstance(command, Grant)]


def many(count: int, *stages: Work, first: int = 0, batch: str = "") -> list[Request]:
    return [request(f"r{first + number}", *stages, seq=first + number, batch=batch) for number in range(count)]


def submit(dispatcher: Dispatcher, *requests: Request, now: float = 0.0) -> list[Grant]:
    commands = dispatcher.handle(now, submitted(*requests))
    dispatcher.check()
    return grants(commands)


def queue_of(dispatcher: Dispatcher, name: str = "n") -> list[str]:
    queue = dispatcher.cluster.prefetch.queues.get(name)
    return list(queue.actions) if queue is not None else []


# ---- entering a node queue -----------------------------------------------------------------------------------------


def test_short_work_is_granted_beyond_the_free_units_in_the_order_of_the_queue() -> None:
    dispatcher = short_work()
    granted = submit(dispatcher, *many(20))
    # Two run. Eight fit into the horizon: four times a quarter of it for each of the two units.
    assert [grant.action for grant in granted] == [f"r{number}" for number in range(10)]
    assert queue_of(dispatcher) == [f"r{number}" for number in range(2, 10)]
    assert dispatcher.cluster.nodes.present["n"].used == {"cores": 2}


def test_a_node_queue_is_bounded_however_short_the_work_is() -> None:
    dispatcher = short_work(lasts_s=1e-6)
    assert len(submit(dispatcher, *many(100))) == 2 + 2 * MOST


@pytest.mark.parametrize(
    ("lasts_s", "prefetches", "stage"),
    [
        (SHORT_S, False, work()),
        (HORIZON_S * 1.01, True, work()),
        (SHORT_S, True, work(repeatable=False)),
        (SHORT_S, True, work(kind="judge")),
        (SHORT_S, True, work(CORES, {"cores": 2})),
        (SHORT_S, True, work(CORES, {"cores": 1, "memory": 0})),
    ],
    ids=["no node queue", "too long", "not repeatable", "never seen", "two units", "two resources"],
)
def test_nothing_else_is_prefetched(lasts_s: float, prefetches: bool, stage: Work) -> None:
    dispatcher = short_work(prefetches=prefetches, lasts_s=lasts_s)
    submit(dispatcher, *many(2))
    assert submit(dispatcher, *many(5, stage, first=2)) == []


def test_nothing_is_prefetched_behind_long_work() -> None:
    dispatcher = short_work()
    submit(dispatcher, request("long-1", work(kind="judge")), request("long-2", work(kind="judge")))
    assert submit(dispatcher, *many(3)) == []


def test_half_as_many_are_prefetched_if_long_work_holds_half_of_the_units() -> None:
    dispatcher = short_work()
    submit(dispatcher, request("long", work(kind="judge")))
    assert len(submit(dispatcher, *many(20))) == 1 + 4


def test_nothing_is_prefetched_behind_work_that_turned_out_long() -> None:
    dispatcher = short_work()
    submit(dispatcher, *many(2))
    late = SHORT_S + RECALL_S + 0.01
    dispatcher.handle(late, TickPassed())
    assert submit(dispatcher, *many(3, first=2), now=late) == []


def test_only_the_head_of_the_queue_is_prefetched() -> None:
    dispatcher = short_work()
    submit(dispatcher, *many(2))
    big = request("big", work(CORES, {"cores": 2}), seq=2)
    assert submit(dispatcher, big, *many(5, first=3)) == [], "they would keep the head waiting"


def test_the_earliest_batch_is_prefetched_first() -> None:
    dispatcher = short_work()
    submit(dispatcher, *many(2))
    dispatcher.cluster.queues.batches.apply_estimate("late", 100.0)
    dispatcher.cluster.queues.batches.apply_estimate("early", 50.0)
    submit(dispatcher, *many(4, first=2, batch="late"), *many(4, first=6, batch="early"))
    assert queue_of(dispatcher)[:4] == ["r6", "r7", "r8", "r9"]


def test_the_shortest_node_queue_is_chosen() -> None:
    dispatcher = short_work("a", "b")
    submit(dispatcher, *many(4 + 6))
    assert (len(queue_of(dispatcher, "a")), len(queue_of(dispatcher, "b"))) == (3, 3)


# ---- leaving a node queue ------------------------------------------------------------------------------------------


def test_a_free_unit_goes_to_the_first_of_the_node_queue_before_any_grant() -> None:
    dispatcher = short_work()
    granted = submit(dispatcher, *many(20))
    commands = dispatcher.handle(0.01, reported(end(granted[0]), end(granted[1])))
    dispatcher.check()
    assert queue_of(dispatcher) == [f"r{number}" for number in range(4, 12)]
    assert dispatcher.cluster.nodes.present["n"].used == {"cores": 2}
    assert [grant.action for grant in grants(commands)] == ["r10", "r11"]


def test_all_are_answered_whatever_the_order_of_their_ends() -> None:
    dispatcher = short_work()
    granted = submit(dispatcher, *many(30))
    answered: list[str] = []
    while granted:
        commands = dispatcher.handle(0.01, reported(*(end(grant) for grant in reversed(granted))))
        dispatcher.check()
        answered += [command.action for command in commands if isinstance(command, AnswerAction)]
        granted = grants(commands)
    assert sorted(answered) == sorted(f"r{number}" for number in range(30))
    assert not dispatcher.cluster.nodes.present["n"].used["cores"]
    assert dispatcher.cluster.prefetch.short == {}


def test_a_cancelled_prefetched_action_is_answered_when_its_node_confirms() -> None:
    dispatcher = short_work()
    granted = submit(dispatcher, *many(4))
    assert dispatcher.handle(0.0, ActionCancelled("r2", "no longer wanted")) == [Revoke("r2", "n", 1)]
    (answer,) = dispatcher.handle(0.0, reported(end(granted[2], 0.0, "cancelled")))
    dispatcher.check()
    assert isinstance(answer, AnswerAction)
    assert (answer.ended, queue_of(dispatcher)) == ("cancelled", ["r3"])


def test_a_prefetched_action_behind_long_work_is_queued_again() -> None:
    dispatcher = short_work("a")
    submit(dispatcher, *many(4))
    assert dispatcher.handle(SHORT_S + RECALL_S, TickPassed()) == [], "it may still be short"
    commands = dispatcher.handle(SHORT_S + RECALL_S + 0.01, TickPassed())
    dispatcher.check()
    assert commands == [Revoke("r2", "a", 1, recall=True), Revoke("r3", "a", 1, recall=True)]
    assert {dispatcher.registry.actions[name].state for name in ("r2", "r3")} == {"queued"}


def test_a_prefetched_action_is_recalled_when_another_node_could_start_it() -> None:
    dispatcher = short_work("a")
    granted = submit(dispatcher, *many(4))
    late = SHORT_S + RECALL_S - 0.001
    assert dispatcher.handle(late, TickPassed()) == [], "no other node could"
    meet(dispatcher, "b")
    dispatcher.handle(late, NodeSeen("a", "1"))
    commands = dispatcher.handle(late, TickPassed())
    dispatcher.check()
    assert [one for one in commands if isinstance(one, Revoke)] == [
        Revoke("r2", "a", 1, recall=True),
        Revoke("r3", "a", 1, recall=True),
    ]
    assert [(grant.action, grant.node, grant.attempt) for grant in grants(commands)] == [("r2", "b", 2), ("r3", "b", 2)]
    # It began before the recall arrived: its verdict counts, and the other attempt is stopped.
    answer, revoke = dispatcher.handle(late, reported(end(granted[2])))[::-1]
    assert isinstance(answer, AnswerAction)
    assert revoke == Revoke("r2", "b", 2)
    dispatcher.check()


def test_a_recall_is_no_failed_attempt() -> None:
    dispatcher = short_work("a")
    submit(dispatcher, *many(3))
    meet(dispatcher, "b")
    recalled = grants(dispatcher.handle(RECALL_S + 0.1, TickPassed()))[0]
    for _ in range(2):
        commands = dispatcher.handle(1.0, reported(end(recalled, status="lost")))
        (recalled,) = grants(commands)
    assert recalled.attempt == 4
    (answer,) = (
        one for one in dispatcher.handle(1.0, reported(end(recalled, status="lost"))) if isinstance(one, AnswerAction)
    )
    assert (answer.ended, answer.reason.endswith("3 attempts")) == ("sandbox-lost", True)


def recalled_behind_long_work() -> tuple[Dispatcher, list[Grant]]:
    """A leader of one node of two cores that has recalled r2, and asked for the inventory just before. r0 and r1 have
    outlasted their timeouts.
    """
    dispatcher = short_work()
    granted = submit(dispatcher, *many(3))
    assert queue_of(dispatcher) == ["r2"]
    dispatcher.handle(LATE_S, NodeSeen("n", "1"))
    commands = dispatcher.handle(LATE_S, TickPassed())
    assert commands == [AskInventory("n"), Revoke("r2", "n", 1, recall=True)]
    dispatcher.check()
    return dispatcher, granted


def test_the_units_of_a_recalled_action_are_granted_again_only_after_its_node_has_reported() -> None:
    """It may have begun before the recall arrived, as the node starts its queue by itself."""
    dispatcher, granted = recalled_behind_long_work()
    submit(dispatcher, request("both", work(units={"cores": 2}), priority=-1.0), now=LATE_S)  # before r2
    for grant in granted[:2]:
        ends = dispatcher.handle(LATE_S, reported(end(grant)))
        dispatcher.check()
        assert not grants(ends), "r2 has one of the two cores, if it has begun"
    (answer, next_) = dispatcher.handle(LATE_S, reported(end(granted[2])))
    dispatcher.check()
    assert isinstance(answer, AnswerAction)
    assert isinstance(next_, Grant)
    assert (answer.action, next_.action) == ("r2", "both")


@pytest.mark.parametrize("begun", [False, True])
def test_an_inventory_from_before_a_recall_restores_what_was_recalled(begun: bool) -> None:
    """It is granted there again, and no orphan as well. If the recall was in time, the node reports it lost."""
    dispatcher, granted = recalled_behind_long_work()
    held = {name: HeldGrant(0, 1, LATE_S, {"cores": 1}) for name in ("r0", "r1")}
    if begun:
        del held["r0"]
        dispatcher.handle(LATE_S, reported(end(granted[0])))
    held["r2"] = HeldGrant(0, 1, 0.0, {"cores": 1}, queued=not begun)
    assert dispatcher.handle(LATE_S, InventoryReported("n", "1", held)) == []
    dispatcher.check()
    assert dispatcher.cluster.nodes.present["n"].used == {"cores": 2}
    assert not dispatcher.cluster.nodes.present["n"].orphans
    if begun:
        (answer,) = dispatcher.handle(LATE_S, reported(end(granted[2])))
        assert isinstance(answer, AnswerAction)
    else:
        assert dispatcher.handle(LATE_S, reported(end(granted[2], status="lost"))) == []
        (again,) = grants(dispatcher.handle(LATE_S, reported(end(granted[0]))))
        assert (again.action, again.attempt) == ("r2", 2)
    dispatcher.check()


def test_work_that_is_not_repeatable_is_never_recalled() -> None:
    """It can be in a node queue all the same: under a former leader, actions before it held its cores."""
    dispatcher = short_work("a")
    submit(dispatcher, *many(2))
    once = request("once", work(repeatable=False), seq=9)
    submit(dispatcher, once)
    dispatcher.handle(0.0, ActionRestored("once", 0, 1, (), "b"))
    meet(dispatcher, "b", {"once": HeldGrant(0, 1, 0.0, {"cores": 1}, queued=True)})
    assert not any(isinstance(one, Revoke) for one in dispatcher.handle(5.0, TickPassed()))


# ---- new leaders, lost nodes ---------------------------------------------------------------------------------------


def test_a_new_leader_adopts_the_node_queue() -> None:
    dispatcher = Dispatcher(specs=SPECS)
    dispatcher.handle(0.0, submitted(*many(4)))
    for number in range(4):
        dispatcher.handle(0.0, ActionRestored(f"r{number}", 0, 1, (), "n"))
    held = {f"r{number}": HeldGrant(0, 1, 1.0, {"cores": 1}, queued=number > 1) for number in range(4)}
    assert meet(dispatcher, "n", held) == []
    assert queue_of(dispatcher) == ["r2", "r3"]
    assert dispatcher.cluster.nodes.present["n"].used == {"cores": 2}


def test_an_orphan_in_the_node_queue_takes_its_units_when_they_are_free() -> None:
    """Its node may start it before it reads that the attempt is not needed."""
    dispatcher = short_work()
    held = {"whose": HeldGrant(0, 1, 1.0, {"cores": 2}), "next": HeldGrant(0, 1, 0.0, {"cores": 1}, queued=True)}
    assert meet(dispatcher, "m", held) == [Revoke("whose", "m", 1), Revoke("next", "m", 1)]
    assert dispatcher.cluster.nodes.present["m"].used == {"cores": 2}
    assert dispatcher.handle(0.0, reported(end(Grant("whose", "m", 1, 0, {}, 0.0), 1.0, "cancelled"))) == []
    dispatcher.check()
    assert dispatcher.cluster.nodes.present["m"].used == {"cores": 1}
    assert dispatcher.handle(0.0, reported(end(Grant("next", "m", 1, 0, {}, 0.0), 0.0, "cancelled"))) == []
    dispatcher.check()
    assert dispatcher.cluster.nodes.present["m"].used == {"cores": 0}


def test_units_of_an_action_that_the_node_has_started_meanwhile_are_taken() -> None:
    dispatcher = short_work(cores=3)
    submit(dispatcher, *many(4))
    assert queue_of(dispatcher) == ["r3"]
    dispatcher.cluster.nodes.present["n"].ask(dispatcher.cluster.newest_serial, 0.0)
    held = {f"r{number}": HeldGrant(0, 1, 0.1, {"cores": 1}) for number in (1, 2, 3)}
    dispatcher.handle(0.2, InventoryReported("n", "1", held))
    dispatcher.check()
    assert dispatcher.registry.actions["r3"].allocated
    assert queue_of(dispatcher) == ["r0"], "its outcome was trimmed: it runs again"


def test_prefetched_actions_of_a_lost_node_run_elsewhere() -> None:
    dispatcher = short_work("a")
    submit(dispatcher, *many(4))
    meet(dispatcher, "b", cores=4)
    moved = grants(dispatcher.handle(0.1, NodeLost("a", "gone")))
    dispatcher.check()
    assert sorted(grant.action for grant in moved) == ["r0", "r1", "r2", "r3"]
    assert {grant.node for grant in moved} == {"b"}


def test_a_new_requests_start_is_predicted_behind_the_node_queue() -> None:
    dispatcher = short_work()
    submit(dispatcher, *many(10))
    refused = request("late", start_by_s=SHORT_S, seq=99)
    (answer,) = (one for one in dispatcher.handle(0.0, submitted(refused)) if isinstance(one, AnswerAction))
    assert answer.ended == "expired"


def test_work_without_units_is_granted_at_once_and_leaves_nothing() -> None:
    dispatcher = short_work()
    free = work(units={"cores": 0})
    granted = submit(dispatcher, *many(6, free))
    assert len(granted) == 6
    for grant in granted:
        dispatcher.handle(1.0, reported(end(grant)))
        dispatcher.check()
    assert dispatcher.registry.actions == {}
