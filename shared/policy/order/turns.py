"""Turns: waiting items of several flows leave one of each flow in turn.

A flow is one tenant's work at one place (intake, entries read, writes). All flows weigh the same, because a turn costs
time of one process and no units of a resource. Shares of units are in `tenants`.

Laws, for items that wait at the same time:

- Items that share a name leave in the order in which they came, whatever their flows.
- An item put after all leaves after all earlier items and before all later ones.
- Otherwise items of one flow leave in the order in which they came, and before an item with n items of its flow ahead
  of it leave at most n + 1 items of each other flow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")

NO_FLOW = ""
"""Flow of items that belong to no tenant."""
RECENT = 2048
"""Items after which a flow that was not served counts as gone: some 0.3 s of a busy mesh."""


_Waiting = tuple[str, Item, tuple[str, ...]]
"""Flow, item, names."""


@dataclass(slots=True)
class _Binding:
    """Flow of the waiting items that have a name, and their number."""

    flow: str
    count: int = 0


@dataclass(slots=True)
class TurnQueue(Generic[Item]):
    """Waiting items. Each operation is O(1), with three exceptions of O(waiting): `put_after_all`, the arrival of a
    second flow, and `put` of an item whose names wait in two flows.
    """

    _fixed: deque[_Waiting[Item]] = field(default_factory=deque)
    """Items that leave first, in this order."""
    _alone: deque[_Waiting[Item]] = field(default_factory=deque)
    """Items of the only flow that is present, and of `NO_FLOW`. A queue without names is five times cheaper. Empty if
    there are `_flows`."""
    _flows: dict[str, deque[_Waiting[Item]]] = field(default_factory=dict)
    """Flows with waiting items."""
    _turns: deque[str] = field(default_factory=deque)
    """The same flows, the next one first."""
    _bound: dict[str, _Binding] = field(default_factory=dict)
    """Names of the items in the flows."""
    _left: int = 0
    """Number of items that have left."""
    _last: str = NO_FLOW
    """Flow served last, apart from `NO_FLOW`."""
    _changed: int = -RECENT
    """Number of items that had left when `_last` changed."""
    _size: int = 0

    def __len__(self) -> int:
        return self._size

    @property
    def shared(self) -> bool:
        """True if items of several flows wait, or have left recently. Parts should be small then."""
        return len(self._flows) > 1 or self._left - self._changed < RECENT

    def put(self, flow: str, item: Item, names: tuple[str, ...] = ()) -> None:
        """Add an item to a flow, or to the flow in which items with one of its names wait.

        If such items wait in two flows, it is put after all.
        """
        self._size += 1
        if not self._flows and self._is_alone(flow):
            self._last = flow or self._last
            self._alone.append((flow, item, names))
            return
        alone, self._alone = self._alone, deque()
        for waiting in alone:
            self._put_in_flow(*waiting)
        self._put_in_flow(flow, item, names)

    def put_after_all(self, item: Item) -> None:
        """Add an item that leaves after all earlier and before all later ones. The order of the earlier ones is fixed
        as it is now.
        """
        self._size += 1
        self._fix(item)

    def skip(self, flow: str, count: int) -> bool:
        """Let `count` items of a flow pass without waiting. Return False if they must be put, because others wait or
        other flows are present.
        """
        if self._size or not self._is_alone(flow):
            return False
        self._last = flow or self._last
        self._left += count
        return True

    def peek(self) -> Item:
        """Return the item that leaves next.

        Raises:
            IndexError: none waits.
        """
        if self._fixed:
            return self._fixed[0][1]
        return (self._flows[self._turns[0]] if self._turns else self._alone)[0][1]

    def pop(self) -> Item:
        """Remove the item that leaves next.

        Raises:
            IndexError: none waits.
        """
        if self._fixed:
            waiting = self._fixed.popleft()
        else:
            waiting = self._next_in_turn() if self._turns else self._alone.popleft()
        self._size -= 1
        self._left += 1
        return waiting[1]

    def take(self, most: int, accepts: Callable[[Item], bool] = lambda _: True) -> list[Item]:
        """Remove a part: items that are handled together, in the order in which they leave.

        Args:
            most: its largest size. It is smaller if items of several flows wait and those of all flows but one leave
                with it: they do not wait for more items of the one.
            accepts: called for each item before it leaves; False: the part ends before it.
        """
        part: list[Item] = []
        several = len(self._turns) > 1
        while self._size and len(part) < most and not (several and len(self._turns) == 1):
            if not accepts(self.peek()):
                break
            part.append(self.pop())
        return part

    def _is_alone(self, flow: str) -> bool:
        """Return whether no other flow than this one is present."""
        return (flow == self._last or not flow or not self._last) and self._left - self._changed >= RECENT

    def _put_in_flow(self, flow: str, item: Item, names: tuple[str, ...]) -> None:
        if names and self._bound:
            flows = {bound.flow for name in names if (bound := self._bound.get(name)) is not None}
            if len(flows) > 1:
                self._fix(item)
                return
            flow = next(iter(flows), flow)
        for name in names:
            bound = self._bound.get(name)
            if bound is None:
                bound = self._bound[name] = _Binding(flow)
            bound.count += 1
        queue = self._flows.get(flow)
        if queue is None:
            queue = self._flows[flow] = deque()
            self._turns.append(flow)
        queue.append((flow, item, names))

    def _fix(self, item: Item) -> None:
        self._fixed += self._alone
        self._alone.clear()
        while self._flows:
            self._fixed.append(self._next_in_turn())
        self._fixed.append((NO_FLOW, item, ()))

    def _next_in_turn(self) -> _Waiting[Item]:
        flow = self._turns[0]
        queue = self._flows[flow]
        waiting = queue.popleft()
        if not queue:
            del self._flows[flow]
            self._turns.popleft()
        elif len(self._turns) > 1:
            self._turns.rotate(-1)
        for name in waiting[2]:
            bound = self._bound[name]
            bound.count -= 1
            if not bound.count:
                del self._bound[name]
        if flow not in (self._last, NO_FLOW):
            if self._last:
                self._changed = self._left
            self._last = flow
        return waiting
