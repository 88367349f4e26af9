"""A dispatcher and its stimuli, step by step."""

from __future__ import annotations

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.model.formulation import AskInventory, Command, Grant, Request
from shared.policy.model.reports import Ended, HeldGrant
from shared.policy.model.results import AttemptResult, ExecutionStatus
from tests.shared.policy.strategies import node


def leading(*names: str, cores: int = 4) -> Dispatcher:
    """A dispatcher that has read the (empty) inventories of these nodes."""
    dispatcher = Dispatcher()
    for name in names:
        meet(dispatcher, name, cores=cores)
    return dispatcher


def meet(
    dispatcher: Dispatcher,
    name: str,
    held: dict[str, HeldGrant] | None = None,
    *,
    incarnation: str = "1",
    cores: int = 4,
) -> list[Command]:
    asked = dispatcher.node_joined(0.0, node(name, {"cores": cores}, incarnation=incarnation))
    assert AskInventory(name) in asked
    return dispatcher.inventory_taken(0.0, name, incarnation, held or {})


def ended(grant: Grant, status: ExecutionStatus = "ok", *, passed: bool | None = None) -> Ended:
    return Ended(
        grant.action,
        grant.node,
        grant.attempt,
        grant.stage,
        AttemptResult(status, passed, reason="reported"),
        execution_s=2.0,
    )


def submit(dispatcher: Dispatcher, *requests: Request) -> list[Grant]:
    return [one for one in dispatcher.submitted(0.0, requests) if isinstance(one, Grant)]


def report(dispatcher: Dispatcher, *ends: Ended) -> list[Command]:
    commands = dispatcher.finished(1.0, ends)
    dispatcher.check()
    return commands


def beat(dispatcher: Dispatcher, now: float) -> None:
    assert all(dispatcher.node_seen(now, name, "1") for name in dispatcher.cluster.nodes.present)
