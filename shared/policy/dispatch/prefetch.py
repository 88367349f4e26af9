"""Short work granted ahead: it waits on the node for units that will be free in a moment.

Between the end of a program and the arrival of the next grant a core waits for two writes to the disk and four wakings.
For work that lasts as long as that, half of the core would be lost; so a node that keeps its own line is granted a
little more than it has units for, and starts it by itself, in the order of the grants.

Laws:
  - only the head of a queue is granted ahead, so the order of grants stays the order of the queue; what is granted can
    no longer be overtaken, which delays newer, more urgent work by `HORIZON_S` at most;
  - only repeatable work of one unit that is expected to be short, and only while the units ahead of it are held by
    short work too: behind a long one it would sit while another node is idle. What sits nevertheless is recalled;
  - it holds no units before it starts. Where units become free, the line's first is booked before anything is granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from shared.policy.dispatch.action_state import ActionState
from shared.policy.resources.ledger import Node

HORIZON_S: Final = 0.02
"""Longest expected wait in a line, and longest expected duration of what may stand in it or be waited for."""
MOST: Final = 8
"""Longest line, a unit held by short work."""
RECALL_S: Final = 0.2
"""What has stood so long is recalled if another node could start it, or only long work is left before it."""


@dataclass(slots=True)
class NodeQueue:
    """What one node was granted ahead, in the order in which it will start it."""

    action_states: dict[str, ActionState] = field(default_factory=dict)
    expected_s: float = 0.0
    """Unit-seconds of it, but for rounding."""


@dataclass(slots=True)
class Prefetch:
    """The lines of all nodes, and the units on each that short work holds."""

    lines: dict[str, NodeQueue] = field(default_factory=dict)
    """Node -> its line; none where nothing stands."""
    short: dict[str, int] = field(default_factory=dict)
    """Node -> units that short work holds."""

    def booked(self, action_state: ActionState) -> None:
        """It holds units of its node from now on."""
        if action_state.expected_s <= HORIZON_S and action_state.pool_units:
            action_state.short = True
            self.short[action_state.node] = self.short.get(action_state.node, 0) + action_state.pool_units

    def lasts(self, action_state: ActionState) -> None:
        """It is not short, whatever was expected; or it has ended."""
        if action_state.short:
            action_state.short = False
            self.short[action_state.node] -= action_state.pool_units
            if not self.short[action_state.node]:
                del self.short[action_state.node]

    def join(self, action_state: ActionState) -> None:
        """It stands in the line of its node."""
        line = self.lines.setdefault(action_state.node, NodeQueue())
        line.action_states[action_state.request.id] = action_state
        line.expected_s += action_state.expected_s
        action_state.ahead = True

    def leave(self, action_state: ActionState) -> None:
        """It is started, ended, or nobody waits for it there."""
        line = self.lines[action_state.node]
        del line.action_states[action_state.request.id]
        line.expected_s -= action_state.expected_s
        action_state.ahead = False
        if not line.action_states:
            del self.lines[action_state.node]

    def first(self, node: Node) -> ActionState | None:
        """Whom the node starts next."""
        line = self.lines.get(node.name)
        return next(iter(line.action_states.values())) if line is not None else None

    def place(self, nodes: Iterable[Node], action_state: ActionState, expected_s: float) -> Node | None:
        """The node that may take it where it would stand shortest; the first of them where equal."""
        work = action_state.work
        if action_state.pool_units != 1 or len(work.units) != 1 or not work.repeatable or expected_s > HORIZON_S:
            return None
        if action_state.request.need is not None:
            return None  # its environment takes one action at a time, and a node's line knows nothing of turns
        best: Node | None = None
        shortest_s = HORIZON_S
        for node in nodes:
            short = self.short.get(node.name, 0)
            if not short or not node.ready or work.kind not in node.kinds or not work.units.keys() <= node.lines_up:
                continue
            line = self.lines.get(node.name)
            stands, before_s = (len(line.action_states), line.expected_s) if line is not None else (0, 0.0)
            wait_s = (before_s + expected_s) / short
            if stands < MOST * short and wait_s <= shortest_s and action_state.request.id not in node.orphans:
                if best is None or wait_s < shortest_s:
                    best = node
                shortest_s = wait_s
        return best

    def stale_prefetched(self, now: float) -> Iterator[ActionState]:
        """Those that have stood for too long."""
        for line in list(self.lines.values()):
            for action_state in list(line.action_states.values()):
                if now - action_state.granted_s <= RECALL_S:
                    break
                if action_state.state == "granted" and action_state.work.repeatable:
                    yield action_state
