"""Read-only views of a dispatcher's state: copies, so that nothing outside changes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.policy.dispatch.action_state import ActionState
from shared.policy.model.formulation import State
from shared.policy.order.ebf import EbfKey
from shared.policy.resources.ledger import Node


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """One present node."""

    incarnation: str
    capacity: Mapping[str, int]
    used: Mapping[str, int]
    owned: Mapping[str, int]
    """Units that it may use now."""
    ready: bool
    """It has answered this leader's inventory request."""
    seen_s: float

    @classmethod
    def of(cls, node: Node) -> NodeSummary:
        """Return a copy of a node's state."""
        return cls(
            node.incarnation,
            dict(node.capacity),
            dict(node.used),
            {name: node.limit(name) for name in node.capacity},
            node.ready,
            node.seen_s,
        )


@dataclass(frozen=True, slots=True)
class ActionSummary:
    """One unanswered action."""

    state: State
    stage: int
    attempt: int
    node: str
    """Empty while it is queued."""
    key: EbfKey
    """Its position in the order of its tenant."""

    @classmethod
    def of(cls, action: ActionState) -> ActionSummary:
        """Return a copy of an action's state."""
        return cls(action.state, action.stage, action.attempt, action.node, action.key)
