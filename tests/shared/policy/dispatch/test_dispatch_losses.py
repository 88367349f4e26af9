"""Single histories of loss: attempts, nodes, units of orphans, inventories, new leaders.

Most are turns that random histories have found to matter.
"""

from __future__ import annotations

import pytest

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import (
    ActionRestored,
    InventoryReported,
    NodeLost,
    NodeSeen,
    TickPassed,
)
from shared.policy.model.formulation import Advance, AnswerAction, AskInventory, Grant, Revoke, StageAct
from shared.policy.model.reports import Ended, HeldGrant
from shared.policy.model.results import AttemptResult, ExecutionStatus
from tests.shared.policy.dispatch.leading import beat, ended, leading, meet, report, submit
from tests.shared.policy.strategies import SPECS, joined, node, request, submitted, work

# ---- losses ----------------------------------------------------------------------------------------------------------


def test_lost_attempts_are_repeated_within_bounds() -> None:
    dispatcher = leading("n")
    (grant,) = submit(dispatcher, request("r"))
    for attempt in (2, 3):
        (again,) = report(dispatcher, ended(grant, "lost"))
        assert isinstance(again, Grant)
        assert again.attempt == attempt
        grant = again
    (answer,) = report(dispatcher, ended(grant, "lost"))
    assert isinstance(answer, AnswerAction)
    assert (answer.ended, answer.reason) == ("sandbox-lost", "reported; 3 attempts")


def used(grant: Grant, status: ExecutionStatus, cpu_s: float) -> Ended:
    result = AttemptResult(status, usage={"cpu_s": cpu_s})
    return Ended(grant.action, grant.node, grant.attempt, grant.stage, result)


def test_usage_of_lost_attempts_counts_and_a_repeated_report_counts_once() -> None:
    dispatcher = leading("n")
    (first,) = submit(dispatcher, request("r", work(name="compile"), work(name="run")))
    (second,) = report(dispatcher, used(first, "lost", 1.0))
    assert isinstance(second, Grant)
    assert report(dispatcher, used(first, "lost", 1.0)) == []
    _, third = report(dispatcher, used(second, "ok", 2.0))
    assert isinstance(third, Grant)
    (fourth,) = report(dispatcher, used(third, "lost", 4.0))
    assert isinstance(fourth, Grant)
    (answer,) = report(dispatcher, used(fourth, "refused", 8.0))
    assert isinstance(answer, AnswerAction)
    assert [act.usage for act in answer.acts] == [{"cpu_s": 3.0}]
    assert answer.usage == {"cpu_s": 12.0}


def test_work_that_is_not_repeatable_ends_with_unknown_outcome() -> None:
    dispatcher = leading("n", "m")
    (grant,) = submit(dispatcher, request("r", work(repeatable=False)))
    (answer,) = dispatcher.handle(1.0, NodeLost(grant.node, "burnt"))
    assert isinstance(answer, AnswerAction)
    assert answer.ended == "unknown-outcome"


def test_a_restarted_node_has_lost_what_it_held() -> None:
    dispatcher = leading("n")
    submit(dispatcher, request("r"))
    assert dispatcher.handle(1.0, joined(node("n", incarnation="2"))) == [AskInventory("n")]
    (grant,) = dispatcher.handle(1.0, InventoryReported("n", "2", {}))
    assert isinstance(grant, Grant)
    assert grant.attempt == 2


def test_a_repeated_hello_changes_nothing() -> None:
    dispatcher = leading("n")
    submit(dispatcher, request("r"))
    assert dispatcher.handle(1.0, joined(node("n"))) == []
    assert dispatcher.registry.actions["r"].state == "granted"


def test_a_node_that_offers_more_kinds_gets_the_work_that_waited_for_them() -> None:
    dispatcher = leading("n")
    assert submit(dispatcher, request("r", work(kind="act"))) == []
    (grant,) = dispatcher.handle(1.0, joined(node("n", kinds="run act")))
    assert isinstance(grant, Grant)
    assert (grant.action, grant.node) == ("r", "n")
    assert dispatcher.handle(2.0, joined(node("n"))) == []  # an old word, read late, takes nothing back
    dispatcher.check()


def test_nodes_that_are_lost_together_are_granted_nothing_meanwhile() -> None:
    """Work of the first lost node must not go to the second, which is lost too."""
    dispatcher = leading("m", "n", cores=2)
    submit(dispatcher, request("r"), request("s", work(repeatable=False), seq=1))
    commands = dispatcher.handle(11.0, TickPassed())
    dispatcher.check()
    assert [type(one) for one in commands] == [AnswerAction]
    assert dispatcher.registry.actions["r"].attempt == 1


def test_a_node_that_was_counted_as_lost_gets_its_work_back() -> None:
    dispatcher = leading("n")
    (grant,) = submit(dispatcher, request("r"))
    dispatcher.handle(1.0, NodeLost("n", "silent"))
    assert not dispatcher.has_node("n", "1")
    assert meet(dispatcher, "n", {"r": HeldGrant(0, 1, 2.0)}) == []
    (answer,) = report(dispatcher, ended(grant))
    assert isinstance(answer, AnswerAction)
    assert answer.ended == "ok"


def test_a_verdict_counts_whichever_attempt_brings_it() -> None:
    dispatcher = leading("n", "m", cores=1)
    (first,) = submit(dispatcher, request("r"))
    (second,) = dispatcher.handle(1.0, NodeLost(first.node, "silent"))
    assert isinstance(second, Grant)
    assert second.node != first.node
    revoke, answer = report(dispatcher, ended(first))
    assert revoke == Revoke("r", second.node, 2)
    assert isinstance(answer, AnswerAction)
    assert answer.ended == "ok"


@pytest.mark.parametrize("status", ["lost", "refused", "cancelled"])
def test_anything_but_a_verdict_counts_for_the_current_attempt_alone(status: ExecutionStatus) -> None:
    dispatcher = leading("n", "m", cores=1)
    (first,) = submit(dispatcher, request("r"))
    dispatcher.handle(1.0, NodeLost(first.node, "silent"))
    assert report(dispatcher, ended(first, status)) == []


# ---- units of orphans ------------------------------------------------------------------------------------------------


def overtaken() -> tuple[Dispatcher, Grant, Grant]:
    """Attempt 1 was counted as lost and reported the verdict; attempt 2 still executes on the only core."""
    dispatcher = leading("n", cores=1)
    (first,) = submit(dispatcher, request("r"))
    dispatcher.handle(1.0, NodeLost("n", "silent"))
    (second,) = meet(dispatcher, "m", cores=1)
    assert isinstance(second, Grant)
    report(dispatcher, ended(first))
    return dispatcher, first, second


def test_an_overtaken_attempt_keeps_its_units_until_its_node_confirms() -> None:
    dispatcher, _, second = overtaken()
    assert submit(dispatcher, request("next")) == [], "the core is still taken"
    (grant,) = report(dispatcher, ended(second, "cancelled"))
    assert isinstance(grant, Grant)
    assert grant.action == "next"


def test_an_inventory_without_an_overtaken_attempt_frees_its_units() -> None:
    dispatcher, _, _ = overtaken()
    submit(dispatcher, request("next", work(timeout_s=100.0)))
    dispatcher.handle(17.0, NodeSeen("m", "1"))
    assert dispatcher.handle(17.0, TickPassed()) == [AskInventory("m")]
    (grant,) = dispatcher.handle(17.0, InventoryReported("m", "1", {}))
    assert isinstance(grant, Grant)
    dispatcher.check()


def test_unknown_work_on_a_node_keeps_its_units_taken_until_its_end() -> None:
    """A new leader finds an answered action still executing: its core is not granted before its end."""
    dispatcher = Dispatcher(specs=SPECS)
    submit(dispatcher, request("r"))
    assert meet(dispatcher, "n", {"gone": HeldGrant(0, 2, 9.0, {"cores": 1})}, cores=1) == [Revoke("gone", "n", 2)]
    dispatcher.check()
    (grant,) = report(dispatcher, Ended("gone", "n", 2, 0, AttemptResult("cancelled")))
    assert isinstance(grant, Grant)


def test_an_action_never_holds_a_node_twice() -> None:
    """Its next stage goes elsewhere, or waits, while an older attempt of it still executes."""
    dispatcher = leading("n", cores=4)
    (first,) = submit(dispatcher, request("r", work(name="compile"), work(name="run")))
    dispatcher.handle(1.0, NodeLost("n", "silent"))
    (second,) = meet(dispatcher, "m", cores=4)
    assert isinstance(second, Grant)
    revoke, advance = report(dispatcher, ended(first))
    assert isinstance(advance, Advance)
    assert (revoke, advance.action, advance.stage) == (Revoke("r", "m", 2), "r", 1)
    (grant,) = report(dispatcher, ended(second, "cancelled"))
    assert isinstance(grant, Grant)
    assert (grant.node, grant.stage, grant.attempt) == ("m", 1, 1)


# ---- inventories -----------------------------------------------------------------------------------------------------


def test_an_inventory_that_was_not_requested_changes_nothing() -> None:
    dispatcher = leading("n")
    submit(dispatcher, request("r"))
    assert dispatcher.handle(1.0, InventoryReported("n", "1", {})) == []
    assert dispatcher.registry.actions["r"].state == "granted"


def test_an_inventory_of_an_earlier_request_does_not_lose_newer_grants() -> None:
    """Requested at 15.1 s, granted at 16, requested again at 30.2: the first inventory arrives, without it."""
    dispatcher = leading("n", cores=4)
    submit(dispatcher, request("stuck", work(timeout_s=0.0)))
    beat(dispatcher, 15.1)
    assert dispatcher.handle(15.1, TickPassed()) == [AskInventory("n")]
    (grant,) = dispatcher.handle(16.0, submitted(request("r", work(timeout_s=100.0))))
    beat(dispatcher, 30.2)
    assert dispatcher.handle(30.2, TickPassed()) == [AskInventory("n")]
    assert dispatcher.handle(30.3, InventoryReported("n", "1", {"stuck": HeldGrant(0, 1, 30.0)})) == []
    assert dispatcher.registry.actions["r"].state == "granted", "it is under way to the node"
    (again,) = dispatcher.handle(30.4, InventoryReported("n", "1", {"stuck": HeldGrant(0, 1, 30.0)}))
    assert isinstance(grant, Grant)
    assert isinstance(again, Grant)
    assert again.attempt == 2


def test_an_inventory_from_before_a_silence_does_not_lose_newer_grants() -> None:
    """Requested at 15.1 s, `r` granted at 16, silence, hello at 40: the inventory of 15.1 arrives, without `r`."""
    dispatcher = leading("n", cores=4)
    stuck = {"stuck": HeldGrant(0, 1, 30.0)}
    submit(dispatcher, request("stuck", work(timeout_s=0.0)))
    beat(dispatcher, 15.1)
    dispatcher.handle(15.1, TickPassed())
    dispatcher.handle(16.0, submitted(request("r", work(timeout_s=100.0))))
    dispatcher.handle(30.0, TickPassed())
    assert not dispatcher.has_node("n", "1")
    assert dispatcher.handle(40.0, joined(node("n"))) == [AskInventory("n")]
    assert dispatcher.handle(40.1, InventoryReported("n", "1", stuck)) == []
    assert dispatcher.handle(40.2, InventoryReported("n", "1", {**stuck, "r": HeldGrant(0, 1, 24.0)})) == []
    assert {name: (action.state, action.attempt) for name, action in dispatcher.registry.actions.items()} == {
        "stuck": ("granted", 1),
        "r": ("granted", 1),
    }
    dispatcher.check()


def test_a_grant_without_outcome_is_checked_by_an_inventory_and_retried() -> None:
    dispatcher = leading("n")
    submit(dispatcher, request("r", work(timeout_s=5.0)))
    for now in (10.0, 20.0):
        beat(dispatcher, now)
        assert dispatcher.handle(now, TickPassed()) == []
    beat(dispatcher, 20.1)
    assert dispatcher.handle(20.1, TickPassed()) == [AskInventory("n")]
    assert dispatcher.handle(20.2, TickPassed()) == []
    (grant,) = dispatcher.handle(20.3, InventoryReported("n", "1", {}))
    assert isinstance(grant, Grant)
    assert grant.attempt == 2


# ---- a new leader ----------------------------------------------------------------------------------------------------


def restored(stage: int, attempt: int, where: str, *, repeatable: bool = True) -> Dispatcher:
    dispatcher = Dispatcher(specs=SPECS)
    stages = tuple(work(name=name, repeatable=repeatable) for name in ("compile", "run"))
    submit(dispatcher, request("r", *stages))
    acts = [StageAct("compile", 0.0, 1.0, "n", 1, 1)][:stage]
    dispatcher.handle(0.0, ActionRestored("r", stage, attempt, tuple(acts), where))
    dispatcher.check()
    return dispatcher


def test_a_new_leader_grants_marked_work_nowhere_before_its_nodes_inventory() -> None:
    dispatcher = restored(1, 1, "n")
    assert meet(dispatcher, "m") == [], "it may run on n"
    assert meet(dispatcher, "n", {"r": HeldGrant(1, 1, 3.0)}) == []
    (answer,) = report(dispatcher, Ended("r", "n", 1, 1, AttemptResult("ok", True)))
    assert isinstance(answer, AnswerAction)
    assert [act.name for act in answer.acts] == ["compile", "run"]


def test_a_new_leader_retries_work_that_its_node_no_longer_has() -> None:
    dispatcher = restored(1, 1, "n")
    (grant,) = meet(dispatcher, "n")
    assert isinstance(grant, Grant)
    assert (grant.stage, grant.attempt) == (1, 2)


@pytest.mark.parametrize(("repeatable", "expected"), [(True, "node-lost"), (False, "unknown-outcome")])
def test_attempts_stay_bounded_over_leaders(repeatable: bool, expected: str) -> None:
    dispatcher = restored(0, 3, "n", repeatable=repeatable)
    meet(dispatcher, "m")
    (answer,) = meet(dispatcher, "n")
    assert isinstance(answer, AnswerAction)
    assert answer.ended == expected


def test_marked_work_of_a_node_that_does_not_come_back_runs_elsewhere() -> None:
    dispatcher = restored(0, 1, "n")
    meet(dispatcher, "m")
    beat(dispatcher, 9.0)
    assert dispatcher.handle(9.0, TickPassed()) == []
    beat(dispatcher, 11.0)
    (grant,) = dispatcher.handle(11.0, TickPassed())
    assert isinstance(grant, Grant)
    assert (grant.node, grant.attempt) == ("m", 2)


def test_hellos_of_two_incarnations_read_together_do_not_lose_work_of_the_newer() -> None:
    """A new leader reads both; the stored grant names the node, and was sent to its second incarnation."""
    dispatcher = restored(0, 1, "n", repeatable=False)
    dispatcher.handle(0.0, joined(node("n", incarnation="1")))
    assert dispatcher.handle(0.0, joined(node("n", incarnation="2"))) == [AskInventory("n")]
    assert dispatcher.handle(0.0, InventoryReported("n", "1", {})) == []
    assert dispatcher.handle(0.0, InventoryReported("n", "2", {"r": HeldGrant(0, 1, 3.0)})) == []
    assert dispatcher.registry.actions["r"].allocated


def test_an_older_attempt_is_not_adopted() -> None:
    """Attempt 2 was granted to m; what n still executes is revoked, and its core is not granted meanwhile."""
    dispatcher = restored(0, 2, "m")
    assert meet(dispatcher, "n", {"r": HeldGrant(0, 1, 9.0)}, cores=1) == [Revoke("r", "n", 1)]
    assert submit(dispatcher, request("other")) == []


@pytest.mark.parametrize(("deadline_s", "expected"), [(0.5, "expired"), (1e6, "cancelled")])
def test_a_cancellation_by_a_former_leader_is_answered_by_its_cause(deadline_s: float, expected: str) -> None:
    dispatcher = Dispatcher(specs=SPECS)
    submit(dispatcher, request("r", deadline_s=deadline_s))
    dispatcher.handle(0.0, ActionRestored("r", 0, 1, (), "n"))
    (answer,) = report(dispatcher, Ended("r", "n", 1, 0, AttemptResult("cancelled")))
    assert isinstance(answer, AnswerAction)
    assert answer.ended == expected
