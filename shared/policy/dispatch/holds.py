"""Holds of attempts: amounts that each has taken from quotas, from its grant until its node reports its end.

A change of a hold is stored with the write that ends its attempt, if there is one.

An answer or the next stage ends an attempt in the store; its hold is settled in the same atomic write. A retry, an
orphan and a lost node have no such write: their changes are written before later commands for the same actions. So the
store may count more as taken than the leader does, for as long as the write waits, and never less than what runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.nodes import Nodes
from shared.policy.model.formulation import Advance, AnswerAction, ChangeHolds, Command
from shared.policy.model.quotas import FIRST_ESTIMATE, NO_QUOTAS, QuotaHold, Settled, hold_key
from shared.policy.model.reports import HeldGrant, HeldGrants, is_listed
from shared.policy.model.results import AttemptResult
from shared.policy.resources.ledger import Node
from shared.policy.resources.quota_checks import check_quotas
from shared.policy.resources.quotas import Quotas
from shared.policy.resources.resource import PLAIN


@dataclass(slots=True)
class AttemptHolds:
    """Begins and ends holds with the attempts that have them. Cost only where work takes quotas."""

    quotas: Quotas
    nodes: Nodes
    granted: dict[str, dict[str, ActionState]]
    """Node -> action -> its state: the cluster's."""

    def begin(self, action: ActionState, node: Node, now: float, *, adopted: bool) -> QuotaHold:
        """Take the quotas of a new attempt, or restore the hold of one that the node reports (`adopted`). Returns the
        hold.
        """
        request, known = action.request, self.quotas.holds.get(action.hold_key)
        if known is not None:  # restored from the store
            self.quotas.expect_end(known.key, action.expected_end_s)
            return known
        hold = QuotaHold(
            request.id,
            action.stage,
            action.attempt,
            node.name,
            node.incarnation,
            now,
            action.amounts,
            action.serial,
            request.tenant,
        )
        if adopted:
            self.quotas.adopt(hold, action.expected_end_s)
        else:
            self.quotas.take(hold, action.expected_end_s, answers=node.specs.get(action.resource, PLAIN).answers)
        return hold

    def orphan_reported(self, action: ActionState, node: Node, held: HeldGrant, now: float) -> None:
        """Restore the hold of an unwanted attempt. It may have been settled while its node counted as lost."""
        declared = action.request.stages[held.stage].quotas
        amounts = {name: amount or FIRST_ESTIMATE for name, amount in declared.items()}
        if amounts and hold_key(action.request.id, held.stage, held.attempt) not in self.quotas.holds:
            attempt = (action.request.id, held.stage, held.attempt)
            self.quotas.adopt(QuotaHold(*attempt, node.name, node.incarnation, now, amounts), now)

    def orphan_ended(
        self, node: Node, action: str, stage: int, attempt: int, result: AttemptResult | None = None, now: float = 0.0
    ) -> bool:
        """Free the units and quotas of an orphan. False: this attempt is no orphan. `result`: None if not reported."""
        is_orphan = node.orphan_ended(action, stage, attempt)
        if is_orphan and self.quotas.holds:
            used, unexecuted = (NO_QUOTAS, False) if result is None else (result.quotas_used, result.unexecuted)
            self.quotas.settle(hold_key(action, stage, attempt), used=used, unexecuted=unexecuted, now=now)
        return is_orphan

    def reconcile(self, node: Node, held: HeldGrants, asked: int) -> None:
        """Settle the holds of attempts that a node's inventory should list and does not."""
        for hold in self.quotas.on_node(node.name):
            listed = is_listed(held, hold.action, hold.stage, hold.attempt)
            if hold.serial <= asked and not listed and not self._lives(hold, node):
                self.quotas.settle(hold.key)

    def node_joins(self, node: Node) -> None:
        """Settle the holds of earlier incarnations."""
        for hold in self.quotas.on_node(node.name):
            if hold.incarnation != node.incarnation and not self._lives(hold, None):
                self.quotas.settle(hold.key)

    def node_gone(self, name: str) -> None:
        """Settle the holds of a lost node for whose attempts no action waits."""
        for hold in self.quotas.on_node(name):
            if not self._lives(hold, None):
                self.quotas.settle(hold.key)

    def expire(self, now: float, grace_s: float) -> None:
        """Settle the holds of a former leader on nodes that have not come back within `grace_s`."""
        for node in self.quotas.long_absent(now, self.nodes.present, grace_s):
            self.node_gone(node)

    def _lives(self, hold: QuotaHold, node: Node | None) -> bool:
        """Return whether an action is granted with this attempt, or it is an orphan."""
        action = self.granted.get(hold.node, {}).get(hold.action)
        if action is not None and action.hold_key == hold.key:
            return True
        orphan = node.orphans.get(hold.action) if node is not None else None
        return orphan is not None and (orphan.stage, orphan.attempt) == (hold.stage, hold.attempt)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        check_quotas(self.quotas)
        for held in self.granted.values():
            for action in held.values():
                if action.work.quotas and (action.allocated or action.parked):
                    assert action.hold_key in self.quotas.holds, f"{action.request.id} runs without its quotas"
        for hold in self.quotas.holds.values():
            node = self.nodes.present.get(hold.node)
            if not self._lives(hold, node):
                assert hold.serial == 0, f"{hold}: nothing will end it"
                assert node is None or not node.ready, f"{hold}: its node's inventory did not list it"


def carry_holds(quotas: Quotas, commands: list[Command]) -> list[Command]:
    """Return these commands with the changes of holds since the last call."""
    if not quotas.changes:
        return commands
    carriers: dict[str, tuple[int, AnswerAction | Advance]] = {}
    for at, one in enumerate(commands):
        if type(one) is AnswerAction or type(one) is Advance:
            carriers.setdefault(one.action, (at, one))
    carried: dict[str, list[Settled]] = {}
    others: list[QuotaHold | Settled] = []
    for change in quotas.collect():
        if type(change) is Settled and change.action in carriers:
            carried.setdefault(change.action, []).append(change)
        else:
            others.append(change)
    changed = list(commands)
    for action, settled in carried.items():
        at, carrier = carriers[action]
        changed[at] = replace(carrier, settled=tuple(settled))
    return [ChangeHolds(tuple(others)), *changed] if others else changed
