"""A dispatcher and its stimuli, step by step."""

from __future__ import annotations

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import InventoryReported, NodeSeen
from shared.policy.model.formulation import AskInventory, Command, Grant, Request
from shared.policy.model.reports import Ended, HeldGrant
from shared.policy.model.results import AttemptResult, ExecutionStatus
from tests.shared.policy.strategies import SPECS, joined, node, reported, submitted


def leading(*names: str, cores: int = 4, calls: int = 0) -> Dispatcher:
    """A dispatcher that has read the (empty) inventories of these nodes."""
    dispatcher = Dispatcher(specs=SPECS)
    for name in names:
        meet(dispatcher, name, cores=cores, calls=calls)
    return dispatcher


def meet(
    dispatcher: Dispatcher,
    name: str,
    held: dict[str, HeldGrant] | None = None,
    *,
    incarnation: str = "1",
    cores: int = 4,
    calls: int = 0,
) -> list[Command]:
    now, units = 0.0, {"cores": cores, "calls": calls} if calls else {"cores": cores}
    asked = dispatcher.handle(now, joined(node(name, units, incarnation=incarnation)))
    assert AskInventory(name) in asked
    return dispatcher.handle(now, InventoryReported(name, incarnation, held or {}))


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
    return [one for one in dispatcher.handle(0.0, submitted(*requests)) if isinstance(one, Grant)]


def report(dispatcher: Dispatcher, *ends: Ended) -> list[Command]:
    commands = dispatcher.handle(1.0, reported(*ends))
    dispatcher.check()
    return commands


def beat(dispatcher: Dispatcher, now: float) -> None:
    for name in dispatcher.node_names():
        dispatcher.handle(now, NodeSeen(name, "1"))
