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

    lives: dict[str, ActionState] = field(default_factory=dict)
    expected_s: float = 0.0
    """Unit-seconds of it, but for rounding."""


@dataclass(slots=True)
class Prefetch:
    """The lines of all nodes, and the units on each that short work holds."""

    lines: dict[str, NodeQueue] = field(default_factory=dict)
    """Node -> its line; none where nothing stands."""
    short: dict[str, int] = field(default_factory=dict)
    """Node -> units that short work holds."""

    def booked(self, life: ActionState) -> None:
        """It holds units of its node from now on."""
        if life.expected_s <= HORIZON_S and life.pool_units:
            life.short = True
            self.short[life.node] = self.short.get(life.node, 0) + life.pool_units

    def lasts(self, life: ActionState) -> None:
        """It is not short, whatever was expected; or it has ended."""
        if life.short:
            life.short = False
            self.short[life.node] -= life.pool_units
            if not self.short[life.node]:
                del self.short[life.node]

    def join(self, life: ActionState) -> None:
        """It stands in the line of its node."""
        line = self.lines.setdefault(life.node, NodeQueue())
        line.lives[life.request.id] = life
        line.expected_s += life.expected_s
        life.ahead = True

    def leave(self, life: ActionState) -> None:
        """It is started, ended, or nobody waits for it there."""
        line = self.lines[life.node]
        del line.lives[life.request.id]
        line.expected_s -= life.expected_s
        life.ahead = False
        if not line.lives:
            del self.lines[life.node]

    def first(self, node: Node) -> ActionState | None:
        """Whom the node starts next."""
        line = self.lines.get(node.name)
        return next(iter(line.lives.values())) if line is not None else None

    def place(self, nodes: Iterable[Node], life: ActionState, expected_s: float) -> Node | None:
        """The node that may take it where it would stand shortest; the first of them where equal."""
        work = life.work
        if life.pool_units != 1 or len(work.units) != 1 or not work.repeatable or expected_s > HORIZON_S:
            return None
        if life.request.stay is not None:
            return None  # its environment takes one action at a time, and a node's line knows nothing of turns
        best: Node | None = None
        shortest_s = HORIZON_S
        for node in nodes:
            short = self.short.get(node.name, 0)
            if not short or not node.ready or work.kind not in node.kinds or not work.units.keys() <= node.lines_up:
                continue
            line = self.lines.get(node.name)
            stands, before_s = (len(line.lives), line.expected_s) if line is not None else (0, 0.0)
            wait_s = (before_s + expected_s) / short
            if stands < MOST * short and wait_s <= shortest_s and life.request.id not in node.orphans:
                if best is None or wait_s < shortest_s:
                    best = node
                shortest_s = wait_s
        return best

    def stale_prefetched(self, now: float) -> Iterator[ActionState]:
        """Those that have stood for too long."""
        for line in list(self.lines.values()):
            for life in list(line.lives.values()):
                if now - life.granted_s <= RECALL_S:
                    break
                if life.state == "granted" and life.work.repeatable:
                    yield life
