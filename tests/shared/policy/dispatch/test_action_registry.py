"""Registry of unanswered actions: each is answered once, whatever asks for it."""

from __future__ import annotations

import pytest

from shared.policy.dispatch.action_registry import ActionRegistry
from shared.policy.dispatch.action_state import ActionState, InvalidTransition
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.model.formulation import AnswerAction, EnvironmentNeed, Request, Revoke
from tests.shared.policy.strategies import node, request


@pytest.fixture
def registry() -> ActionRegistry:
    return ActionRegistry(ClusterState())


def queue(registry: ActionRegistry, one: Request) -> ActionState:
    action = registry.add(one)
    registry.cluster.queues.enqueue(action)
    return action


def grant(registry: ActionRegistry, action: ActionState) -> None:
    registry.cluster.add_node(node("n"))
    registry.cluster.queues.dequeue(action)
    action.move("granted")
    action.attempt = 1
    registry.cluster.assign(action, registry.cluster.nodes.present["n"], 1.0)


def test_an_answered_action_leaves_nothing_and_cannot_be_answered_again(registry: ActionRegistry) -> None:
    action = queue(registry, request("a", batch="b"))
    answer = registry.answer_queued(2.0, action, "cancelled", "no longer needed")
    assert (answer.action, answer.ended, answer.reason, answer.queue_s) == ("a", "cancelled", "no longer needed", 2.0)
    assert (registry.actions, registry.members("b"), list(registry.expire(1e9, 9))) == ({}, [], [])
    with pytest.raises(InvalidTransition, match="finished -> finished"):
        registry.answer(3.0, action, "ok", "")
    registry.check()


def test_a_queued_action_is_cancelled_at_once_and_a_granted_one_when_its_node_confirms(
    registry: ActionRegistry,
) -> None:
    queue(registry, request("waits"))
    runs = queue(registry, request("runs", seq=1))
    grant(registry, runs)
    first, second = registry.cancel(2.0, ["waits", "runs", "unknown"], "closed")
    assert isinstance(first, AnswerAction)
    assert (first.action, first.ended) == ("waits", "cancelled")
    assert second == Revoke("runs", "n", 1)
    assert registry.cancel(3.0, ["runs"], "again") == [], "it is being cancelled already"
    registry.cluster.release(runs)
    confirmed = registry.answer_cancelled(4.0, runs)
    assert (confirmed.ended, confirmed.reason) == ("cancelled", "closed")
    registry.check()


def test_actions_expire_once_at_their_deadlines(registry: ActionRegistry) -> None:
    queue(registry, request("soon", deadline_s=5.0))
    queue(registry, request("later", seq=1, deadline_s=9.0))
    assert registry.expire(4.9, 9) == []
    (expired,) = registry.expire(5.0, 9)
    assert isinstance(expired, AnswerAction)
    assert (expired.action, expired.ended) == ("soon", "expired")
    assert registry.expire(5.0, 9) == []
    assert set(registry.actions) == {"later"}


def test_the_next_action_of_a_trajectory_waits_until_the_first_is_answered(registry: ActionRegistry) -> None:
    need = EnvironmentNeed("t", "runtime.local", {})
    first, second = (
        queue(registry, Request(name, "ada", "t", "", (0, at), request("x").stages, 1e6, need=need))
        for at, name in enumerate(["first", "second"])
    )
    assert second.lane is not None
    assert second.lane.behind == {"second"}
    registry.answer_queued(1.0, first, "cancelled", "")
    assert second.lane.behind == set()
    assert second.lane.queue.head() == "second"
    registry.check()
