"""Prefetch: short work granted to a node before its units are free.

Between the end of a program and the arrival of the next grant, a core waits for two disk writes and four wakeups. For
work that lasts about as long, half of the core would be lost. So a node that keeps its own queue is granted a little
more than it has units for, and starts it by itself in the order of the grants.

Laws:
  - only the head of a queue is prefetched, so the order of grants stays the order of the queue. Newer, more urgent work
    cannot overtake what is granted, which delays it by `HORIZON_S` at most;
  - only repeatable work of one unit that is expected to be short is prefetched, and only while the units that it waits
    for are held by short work too: behind long work it would wait while another node is idle. If it does wait too long,
    it is recalled;
  - it holds no units before it starts. When units become free, the node queue's first action takes them before anything
    is granted. A recalled action takes them too, until its node reports that it has not started it (`orphans`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from shared.policy.dispatch.action_state import ActionState
from shared.policy.resources.ledger import ChangeLog, Node

HORIZON_S: Final = 0.02
"""Longest expected wait in a node queue, and longest expected duration of work that is prefetched or waited for."""
MOST: Final = 8
"""Longest node queue, per unit held by short work."""
RECALL_S: Final = 0.2
"""After so long a wait, an action is recalled if another node could start it or only long work is ahead of it."""


@dataclass(slots=True)
class NodeQueue:
    """Prefetched actions of one node, in the order in which it will start them."""

    actions: dict[str, ActionState] = field(default_factory=dict)
    expected_s: float = 0.0
    """Unit-seconds of these actions, except for rounding errors."""


@dataclass(slots=True)
class Prefetch:
    """Queues of all nodes, and the units on each that short work holds."""

    changes: ChangeLog
    """Log of nodes whose queue or short work has changed."""
    queues: dict[str, NodeQueue] = field(default_factory=dict)
    """Node -> its queue; no entry for an empty queue."""
    short: dict[str, int] = field(default_factory=dict)
    """Node -> units that short work holds."""

    def count_short(self, action: ActionState) -> None:
        """Count the units of an action that holds them from now on, if it is short."""
        if action.expected_s <= HORIZON_S and action.pool_units:
            action.short = True
            self.short[action.node] = self.short.get(action.node, 0) + action.pool_units
            self.changes.touch(action.node)

    def uncount_short(self, action: ActionState) -> None:
        """Stop counting an action as short: it has ended, or has run longer than expected."""
        if action.short:
            action.short = False
            self.short[action.node] -= action.pool_units
            if not self.short[action.node]:
                del self.short[action.node]
            self.changes.touch(action.node)

    def add(self, action: ActionState) -> None:
        """Add an action to the queue of its node."""
        queue = self.queues.setdefault(action.node, NodeQueue())
        queue.actions[action.request.id] = action
        queue.expected_s += action.expected_s
        self.changes.touch(action.node)
        action.prefetched = True

    def remove(self, action: ActionState) -> None:
        """Remove an action from the queue of its node: it has started, has ended, or is recalled."""
        queue = self.queues[action.node]
        del queue.actions[action.request.id]
        queue.expected_s -= action.expected_s
        action.prefetched = False
        if not queue.actions:
            del self.queues[action.node]
        self.changes.touch(action.node)

    def first(self, node: Node) -> ActionState | None:
        """Return the action that the node starts next."""
        queue = self.queues.get(node.name)
        return next(iter(queue.actions.values())) if queue is not None else None

    def may_wait(self, action: ActionState, expected_s: float) -> bool:
        """Return whether the action may wait in the queue of some node."""
        work = action.work
        if action.pool_units != 1 or len(work.units) != 1 or not work.repeatable or expected_s > HORIZON_S:
            return False
        if work.quotas:
            return False  # it would hold them while it waits in the node's queue
        return action.request.need is None  # an environment takes one action at a time, and node queues ignore turns

    def place(self, nodes: Iterable[Node], action: ActionState, expected_s: float) -> Node | None:
        """Return the node with the shortest expected wait of those whose queue may take the action; the first where
        equal.
        """
        work = action.work
        if not self.may_wait(action, expected_s):
            return None
        best: Node | None = None
        shortest_s = HORIZON_S
        for node in nodes:
            short = self.short.get(node.name, 0)
            if not short or not node.ready or work.kind not in node.kinds or not work.units.keys() <= node.prefetches:
                continue
            queue = self.queues.get(node.name)
            length, before_s = (len(queue.actions), queue.expected_s) if queue is not None else (0, 0.0)
            wait_s = (before_s + expected_s) / short
            if length < MOST * short and wait_s <= shortest_s and action.request.id not in node.orphans:
                if best is None or wait_s < shortest_s:
                    best = node
                shortest_s = wait_s
        return best

    def stale_prefetched(self, now: float) -> Iterator[ActionState]:
        """Yield repeatable prefetched actions that have waited longer than `RECALL_S`."""
        for queue in list(self.queues.values()):
            for action in list(queue.actions.values()):
                if now - action.granted_s <= RECALL_S:
                    break
                if action.state == "granted" and action.work.repeatable:
                    yield action

    def check(self, node: Node, held: Iterable[ActionState]) -> None:
        """Assert the invariants of one node; tests call it after every step, services never do. `held`: its actions."""
        held, queue = list(held), self.queues.get(node.name)
        waiting = {action.request.id for action in held if action.prefetched}
        assert waiting == (queue.actions.keys() if queue is not None else set()), f"{node.name}: its queue"
        short = sum(action.pool_units for action in held if action.allocated and action.short)
        assert short == self.short.get(node.name, 0), f"{node.name}: units of short work"
        first = self.first(node)
        assert first is None or not node.has_free(first.units), f"{node.name}: units are free, and its queue waits"
        for orphan in node.orphans.values():
            assert not (orphan.awaits and node.has_free(orphan.awaits)), (
                f"{node.name}: units are free, and {orphan} waits"
            )
