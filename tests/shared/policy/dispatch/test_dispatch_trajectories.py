"""Trajectories at the dispatcher: placements, turns of their actions, ends."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import (
    ActionRestored,
    EnvironmentEndReported,
    InventoryReported,
    NodeLost,
    NodeSeen,
    PlacementRestored,
    TargetReceived,
    TickPassed,
    TrajectoryClosed,
    TrajectoryRestored,
)
from shared.policy.model.formulation import (
    AnswerAction,
    CloseEnvironment,
    Command,
    EnvironmentNeed,
    ForgetTrajectory,
    Grant,
    Request,
    Revoke,
    TrajectoryEnd,
)
from shared.policy.model.reports import Ended, HeldGrant
from shared.policy.model.results import AttemptResult, ExecutionStatus
from shared.policy.resources.ledger import Node
from tests.shared.policy.strategies import SPECS, joined, reported, request, submitted, work

KINDS = frozenset({"run", "act", "runtime.local"})


def host(name: str, cores: int = 4, memory: int = 100) -> Node:
    return Node(name, "1", "cpu", {"cores": cores, "memory_mb": memory}, KINDS, SPECS)


def meet(dispatcher: Dispatcher, *nodes: Node, now: float = 0.0) -> None:
    for node in nodes:
        dispatcher.handle(now, joined(node))
        dispatcher.handle(now, InventoryReported(node.name, node.incarnation, {}))


def leading(*nodes: Node) -> Dispatcher:
    dispatcher = Dispatcher(specs=SPECS)
    meet(dispatcher, *nodes)
    return dispatcher


def act(name: str, trajectory: str = "t", *, memory: int = 10, cores: int = 1, seq: int = 0, **more: bool) -> Request:
    one = request(name, work(units={"cores": cores}, kind="act", repeatable=more.get("repeatable", False)), seq=seq)
    return replace(one, need=EnvironmentNeed(trajectory, "runtime.local", {"memory_mb": memory}))


def submit(dispatcher: Dispatcher, *requests: Request, now: float = 0.0) -> list[Command]:
    commands = dispatcher.handle(now, submitted(*requests))
    dispatcher.check()
    return commands


def end(
    dispatcher: Dispatcher, grant: Command, status: ExecutionStatus = "ok", now: float = 1.0, **more: bool
) -> list[Command]:
    assert isinstance(grant, Grant)
    stands = more.get("stands", True)
    ended = Ended(
        grant.action,
        grant.node,
        grant.attempt,
        0,
        AttemptResult(status, True, environment_exists=stands),
        execution_s=0.5,
    )
    commands = dispatcher.handle(now, reported(ended))
    dispatcher.check()
    return commands


def grants(commands: list[Command]) -> list[tuple[str, str, bool]]:
    return [(one.action, one.node, one.begins) for one in commands if isinstance(one, Grant)]


def answers(commands: list[Command]) -> dict[str, str]:
    return {one.action: one.ended for one in commands if isinstance(one, AnswerAction)}


def test_the_first_action_goes_to_the_node_with_the_least_share_of_memory_taken() -> None:
    dispatcher = leading(host("a", cores=16, memory=100), host("b", cores=4, memory=1000))
    assert grants(submit(dispatcher, act("r0", "t0", memory=50))) == [("r0", "b", True)]
    assert grants(submit(dispatcher, act("r1", "t1", memory=40, seq=1))) == [("r1", "b", True)]
    assert grants(submit(dispatcher, act("r2", "t2", memory=1, seq=2))) == [("r2", "a", True)]


def test_later_actions_go_to_the_node_of_the_environment_one_at_a_time_in_order() -> None:
    dispatcher = leading(host("a"), host("b"))
    (first,) = submit(dispatcher, act("r0"), act("r1", seq=1), act("r2", seq=2))
    assert grants([first]) == [("r0", "a", True)]
    (_, second) = end(dispatcher, first)
    assert grants([second]) == [("r1", "a", False)]
    (_, third) = end(dispatcher, second)
    assert grants([third]) == [("r2", "a", False)]


def test_an_action_of_a_busy_node_s_environment_waits_though_another_node_is_free() -> None:
    dispatcher = leading(host("a", cores=1), host("b", cores=1, memory=50))
    (first,) = submit(dispatcher, act("r0"))
    end(dispatcher, first)
    (other,) = submit(dispatcher, replace(request("long", work(kind="run"), seq=1)))
    assert isinstance(other, Grant)
    node = other.node
    more = submit(dispatcher, act("r1", seq=2))
    assert grants(more) == ([] if node == "a" else [("r1", "a", False)])


def test_memory_is_held_until_the_node_reports_the_end_of_the_environment() -> None:
    dispatcher = leading(host("a", memory=20))
    (first,) = submit(dispatcher, act("r0", "t0", memory=20))
    end(dispatcher, first)
    assert submit(dispatcher, act("r1", "t1", memory=5, seq=1)) == []
    closing = dispatcher.handle(2.0, TrajectoryClosed("t0"))
    assert closing == [CloseEnvironment("a", "t0")]
    commands = dispatcher.handle(3.0, EnvironmentEndReported("a", "1", "t0", "closed", ""))
    assert grants(commands) == [("r1", "a", True)]
    assert ForgetTrajectory("t0", "closed", "the trajectory was closed") in commands


def test_work_that_waits_for_memory_delays_nothing_else() -> None:
    dispatcher = leading(host("a", memory=20))
    (first,) = submit(dispatcher, act("r0", "t0", memory=20))
    end(dispatcher, first)
    begins = [act(f"b{at}", f"s{at}", memory=5, seq=1 + at) for at in range(200)]
    assert submit(dispatcher, *begins) == []
    assert grants(submit(dispatcher, request("plain", seq=300))) == [("plain", "a", False)]
    assert grants(submit(dispatcher, act("r1", "t0", seq=301))) == [("r1", "a", False)]


def test_closing_cancels_queued_actions_and_revokes_running_ones() -> None:
    dispatcher = leading(host("a"))
    (first,) = submit(dispatcher, act("r0"), act("r1", seq=1))
    commands = dispatcher.handle(1.0, TrajectoryClosed("t"))
    assert answers(commands) == {"r1": "cancelled"}
    assert [type(one) for one in commands] == [Revoke, AnswerAction, CloseEnvironment]
    assert answers(end(dispatcher, first, "cancelled")) == {"r0": "cancelled"}
    dispatcher.handle(2.0, EnvironmentEndReported("a", "1", "t", "closed", ""))
    assert answers(submit(dispatcher, act("late", seq=2))) == {"late": "environment-lost"}
    assert dispatcher.cluster.nodes.present["a"].used == {"cores": 0, "memory_mb": 0}


def test_an_environment_that_could_not_be_created_may_begin_elsewhere() -> None:
    dispatcher = leading(host("a", memory=101), host("b"))
    (first,) = submit(dispatcher, act("r0"))
    assert grants([first]) == [("r0", "a", True)]
    commands = end(dispatcher, first, "lost", stands=False)
    assert ForgetTrajectory("t", "unmade", "") in commands
    ((action_id, _, begins),) = grants(commands)
    assert (action_id, begins) == ("r0", True)


def test_an_action_lost_in_an_environment_is_not_repeated_and_the_next_one_runs() -> None:
    dispatcher = leading(host("a"))
    (first,) = submit(dispatcher, act("r0"), act("r1", seq=1))
    commands = end(dispatcher, first, "lost")
    assert answers(commands) == {"r0": "unknown-outcome"}
    assert grants(commands) == [("r1", "a", False)]


def test_actions_that_wait_for_a_lost_environment_are_lost() -> None:
    dispatcher = leading(host("a"))
    (first,) = submit(dispatcher, act("r0"), act("r1", seq=1), act("r2", seq=2))
    commands = dispatcher.handle(1.0, EnvironmentEndReported("a", "1", "t", "lost", "its container was killed"))
    assert answers(commands) == {"r1": "environment-lost", "r2": "environment-lost"}
    assert ForgetTrajectory("t", "lost", "its container was killed") in commands
    assert answers(end(dispatcher, first, "lost")) == {"r0": "environment-lost"}


def test_a_node_that_comes_back_continues_its_environment_or_reports_its_loss() -> None:
    dispatcher = leading(host("a"))
    for name in ("kept", "gone"):
        (first,) = submit(dispatcher, act(f"{name}0", name))
        end(dispatcher, first)
    again = replace_incarnation(host("a"), "2")
    dispatcher.handle(2.0, joined(again))
    assert submit(dispatcher, act("kept1", "kept", seq=2), act("gone1", "gone", seq=3), now=2.0) == []
    commands = dispatcher.handle(2.0, InventoryReported("a", "2", {}, {"kept": {"memory_mb": 10}}))
    dispatcher.check()
    assert answers(commands) == {"gone1": "environment-lost"}
    assert grants(commands) == [("kept1", "a", False)]
    assert dispatcher.cluster.nodes.present["a"].used["memory_mb"] == 10


def test_environments_of_an_absent_node_are_lost_after_a_while_and_not_before() -> None:
    dispatcher = leading(host("a"))
    (first,) = submit(dispatcher, act("r0"))
    end(dispatcher, first)
    dispatcher.handle(5.0, NodeLost("a", "silent"))
    assert submit(dispatcher, act("r1", seq=1), now=5.0) == []
    assert dispatcher.handle(6.0, TickPassed()) == []
    gone_s = 6.0 + dispatcher.config.placement_lost_s
    assert dispatcher.handle(gone_s, TickPassed()) == []
    assert answers(dispatcher.handle(gone_s + 0.1, TickPassed())) == {"r1": "environment-lost"}


def test_an_unknown_environment_is_closed_and_its_memory_taken_until_then() -> None:
    dispatcher = Dispatcher(specs=SPECS)
    dispatcher.handle(0.0, joined(host("a", memory=20)))
    commands = dispatcher.handle(0.0, InventoryReported("a", "1", {}, {"orphan": {"memory_mb": 15}}))
    assert commands == [CloseEnvironment("a", "orphan")]
    assert submit(dispatcher, act("r0")) == []
    assert grants(dispatcher.handle(1.0, EnvironmentEndReported("a", "1", "orphan", "closed", ""))) == [
        ("r0", "a", True)
    ]


def test_a_new_leader_continues_at_the_stored_placement() -> None:
    dispatcher = Dispatcher(specs=SPECS)
    dispatcher.handle(0.0, TrajectoryRestored("over", "it was idle"))
    dispatcher.handle(0.0, PlacementRestored("t", "b", {"memory_mb": 10}))
    assert answers(submit(dispatcher, act("r1"), act("late", "over", seq=1))) == {"late": "environment-lost"}
    dispatcher.handle(0.0, joined(host("a")))
    assert dispatcher.handle(0.0, InventoryReported("a", "1", {}, {})) == []
    dispatcher.handle(0.0, joined(host("b")))
    assert grants(dispatcher.handle(0.0, InventoryReported("b", "1", {}, {"t": {"memory_mb": 10}}))) == [
        ("r1", "b", False)
    ]


def test_cores_are_owned_on_the_node_of_an_environment_even_with_a_target_of_zero() -> None:
    dispatcher = leading(host("a"), host("b", memory=101))
    (first,) = submit(dispatcher, act("r0"))
    assert grants([first]) == [("r0", "b", True)]
    end(dispatcher, first)
    dispatcher.handle(2.0, TargetReceived("cores@cpu", 0))
    for now in (20.0, 40.0, 60.0):  # linger windows
        dispatcher.handle(now, NodeSeen("a", "1"), NodeSeen("b", "1"))
        dispatcher.handle(now, TickPassed())
    assert dispatcher.cluster.nodes.present["b"].limit("cores") == 0
    assert grants(submit(dispatcher, act("r1", seq=1), now=61.0)) == [("r1", "b", False)]


def replace_incarnation(node: Node, incarnation: str) -> Node:
    return Node(node.name, incarnation, node.node_class, node.capacity, node.kinds, node.specs)


def test_a_leader_that_died_over_an_answer_had_granted_the_next_action_and_both_are_answered() -> None:
    """A grant and the answer before it are written in one flush: one may be durable, the other not."""
    dispatcher = Dispatcher(specs=SPECS)
    dispatcher.handle(0.0, PlacementRestored("t", "a", {"memory_mb": 10}))
    submit(dispatcher, act("r0"), act("r1", seq=1))
    for name in ("r0", "r1"):
        dispatcher.handle(1.0, ActionRestored(name, 0, 1, (), "a"))
    dispatcher.handle(1.0, joined(host("a")))
    first, second = (Ended(name, "a", 1, 0, AttemptResult("ok", True), execution_s=0.5) for name in ("r0", "r1"))
    assert answers(dispatcher.handle(1.0, reported(first))) == {"r0": "ok"}
    dispatcher.check()
    held = {"r1": HeldGrant(0, 1, 0.1, {"cores": 1})}
    dispatcher.handle(1.0, InventoryReported("a", "1", held, {"t": {"memory_mb": 10}}))
    dispatcher.check()
    assert answers(dispatcher.handle(2.0, reported(second))) == {"r1": "ok"}
    dispatcher.check()


@pytest.mark.parametrize("first", ["outcome", "end"])
@pytest.mark.parametrize("how", ["expired", "lost", "closed"])
def test_the_end_of_an_environment_does_not_depend_on_the_order_of_reports(first: str, how: TrajectoryEnd) -> None:
    dispatcher = leading(host("a"))
    (grant,) = submit(dispatcher, act("r0"), act("r1", seq=1))
    assert isinstance(grant, Grant)
    cut = Ended("r0", "a", grant.attempt, 0, AttemptResult("environment-lost", reason="why", environment_ended=how))

    def outcome() -> list[Command]:
        return dispatcher.handle(5.0, reported(cut))

    def end_of_environment() -> list[Command]:
        return dispatcher.handle(5.0, EnvironmentEndReported("a", "1", "t", how, "why"))

    steps = [outcome, end_of_environment] if first == "outcome" else [end_of_environment, outcome]
    commands = [command for step in steps for command in step()]
    dispatcher.check()
    assert [one for one in commands if isinstance(one, ForgetTrajectory)] == [ForgetTrajectory("t", how, "why")]
    assert answers(commands) == {"r0": "environment-lost", "r1": "environment-lost"}


def test_shares_do_not_move_back_and_forth_for_an_action_that_its_node_may_not_take() -> None:
    """Its node still executes an older attempt, so no share lets it start before that has ended."""
    dispatcher = leading(host("n0"), host("n1"))
    dispatcher.handle(0.0, TargetReceived("cores@cpu", 1))
    end(dispatcher, submit(dispatcher, act("a"))[-1])
    second = submit(dispatcher, act("b", repeatable=True), now=2.0)[-1]
    assert isinstance(second, Grant)
    dispatcher.handle(3.0, reported(Ended("b", second.node, 1, 0, AttemptResult("lost"))))
    held = {"b": HeldGrant(0, 1, 0.0, {"cores": 1})}
    dispatcher.handle(4.0, joined(dataclasses.replace(host(second.node), incarnation="2")))
    commands = dispatcher.handle(4.0, InventoryReported(second.node, "2", held, {"t": {"memory_mb": 10}}))
    assert not grants(commands)
    dispatcher.check()
