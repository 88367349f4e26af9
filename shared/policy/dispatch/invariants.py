"""Invariants that are checked in production: after each call of the dispatcher, about the actions and nodes that its
commands name.

`Dispatcher.check` asserts all invariants, in tests. These checks cost O(commands), less than 1 us an action, and
`python -O` keeps them. A failed one ends the leader's term before a command of the call is executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.model.formulation import AnswerAction, Command, Grant, Resume
from shared.policy.model.quotas import exceeds
from shared.policy.resources.ledger import Node


class InvariantError(RuntimeError):
    """An invariant of the dispatcher does not hold. The message names it, and the action or node."""

    def __init__(self, what: str, action: str = "") -> None:
        super().__init__(what)
        self.action = action
        """The action with which it was found; empty: unknown."""


def check_commands(
    cluster: ClusterState, unanswered: Mapping[str, ActionState], commands: Iterable[Command], newest_serial: int
) -> None:
    """Check what the commands of one call say about the state after it.

    Args:
        cluster: state after the call.
        unanswered: unanswered actions after the call.
        commands: all commands of the call.
        newest_serial: serial of the newest grant before the call.

    Raises:
        InvariantError: an action is answered or granted twice, is granted and not on that node, or lets a node or a
            quota exceed its limit.
    """
    present, answered = cluster.nodes.present, set[str]()
    for command in commands:
        if type(command) is Grant:
            name, on, attempt, _, units, _, begins, hold, _, numbers, _ = command
            action, node = unanswered.get(name), present.get(on)
            if (
                action is None
                or node is None
                or not node.ready
                or action.state != "granted"
                or action.node != on
                or action.attempt != attempt
                or action.serial <= newest_serial
            ):
                raise InvariantError(_wrong_grant(command, action, node), name)
            _check_units(node, units)
            if numbers and node.numbers(action.resource, name) != numbers:
                raise InvariantError(f"{name} is granted {action.resource} {numbers}, which others have", name)
            if begins and action.request.need is not None:
                _check_units(node, action.request.need.units)
            if hold is not None or action.work.quotas:
                _check_quotas(cluster, action)
        elif type(command) is AnswerAction:
            name = command.action
            if name in unanswered or name in answered:
                raise InvariantError(f"{name} is answered {command.ended!r} twice, or not removed", name)
            answered.add(name)
        elif type(command) is Resume:
            action, node = unanswered.get(command.action), present.get(command.node)
            if action is None or node is None or action.node != command.node or not action.allocated:
                what = f"{command.action} continues on {command.node} without its units"
                raise InvariantError(what, command.action)
            _check_units(node, command.units)


def _wrong_grant(grant: Grant, action: ActionState | None, node: Node | None) -> str:
    if action is None:
        return f"{grant.action} is granted, and is not unanswered"
    if node is None or not node.ready:
        return f"{grant.action} is granted on {grant.node}, which is absent or not ready"
    state = f"{action.state} on {action.node!r}, attempt {action.attempt}"
    return f"{grant.action} is granted on {grant.node}, attempt {grant.attempt}, and was granted before: {state}"


def _check_units(node: Node, units: Mapping[str, int]) -> None:
    """Check the resources of a node of which units were granted. A node may report more than exist of others."""
    for name in units:
        known = node.resources.get(name)
        if (known is None or known.used > known.capacity) and units[name] > 0:
            raise InvariantError(f"{node.name}: more {name} granted than exist: {known}")


def _check_quotas(cluster: ClusterState, action: ActionState) -> None:
    if action.hold_key not in cluster.quotas.holds:
        raise InvariantError(f"{action.request.id} is granted without its quotas", action.request.id)
    for name in action.work.quotas:
        limits, used = cluster.quotas.limits.get(name), cluster.quotas.used.get(name, 0.0)
        if limits is None or (limits.concurrency and exceeds(used, min(limits.concurrency))):
            what = f"{action.request.id} is granted, and the quota {name!r} exceeds its concurrency"
            raise InvariantError(what, action.request.id)
