"""Waiting actions of one tenant in EBF order, with one entry for each batch: a batch moves without its requests.

The key of a request is (T of its batch, priority, arrival). Within a batch T is the same for all, so the batch's own
queue orders by (priority, arrival), and batches are ordered by T. What is outside batches has keys of its own. Merged
by their heads they give the order of one queue over all keys (tests/shared/policy/order/test_batchqueue.py).
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from shared.policy.order.ebf import EbfKey, EbfQueue


@dataclass(slots=True)
class _Group:
    """Waiting actions of one batch."""

    due_s: float
    """T."""
    queue: EbfQueue[str] = field(default_factory=EbfQueue)
    """Keys without T."""


@dataclass(slots=True)
class BatchQueue:
    """`push`, `discard` and `head` cost what they cost in `EbfQueue`, and a search among the batches; `move` costs a
    search among the batches, however many of its requests wait.
    """

    _alone: EbfQueue[str] = field(default_factory=EbfQueue)
    """Outside batches."""
    _groups: dict[str, _Group] = field(default_factory=dict)
    """Batches with waiting actions."""
    _order: list[tuple[float, str]] = field(default_factory=list)
    """(T, batch), ascending."""
    _batch: dict[str, str] = field(default_factory=dict)
    """Action -> its batch."""

    def __len__(self) -> int:
        return len(self._alone) + len(self._batch)

    def push(self, key: EbfKey, action: str, batch: str = "") -> None:
        """Add an action. All of a batch have the T that came last.

        Raises:
            ValueError: it waits already, or its key is not a number and has no place.
        """
        if not batch:
            self._alone.push(key, action)
            return
        group = self._groups.get(batch)
        if group is None:
            if key.expected_completion_s != key.expected_completion_s:
                raise ValueError(f"{action!r} has no place in the order: {key}")
            group = self._groups[batch] = _Group(key.expected_completion_s)
            bisect.insort(self._order, (group.due_s, batch))
        elif group.due_s != key.expected_completion_s:
            self.move(batch, key.expected_completion_s)
        group.queue.push(EbfKey(0.0, key.priority, key.arrival), action)
        self._batch[action] = batch

    def discard(self, action: str) -> bool:
        """Take an action out wherever it stands; False when it does not wait here."""
        batch = self._batch.pop(action, None)
        if batch is None:
            return self._alone.discard(action)
        group = self._groups[batch]
        group.queue.discard(action)
        if not group.queue:
            del self._groups[batch]
            del self._order[bisect.bisect_left(self._order, (group.due_s, batch))]
        return True

    def move(self, batch: str, due_s: float) -> None:
        """Give a batch another T; nothing happens where none of it waits here."""
        group = self._groups.get(batch)
        if group is None or group.due_s == due_s:
            return
        del self._order[bisect.bisect_left(self._order, (group.due_s, batch))]
        group.due_s = due_s
        bisect.insort(self._order, (due_s, batch))

    def key(self, action: str) -> EbfKey:
        """Key of a waiting action.

        Raises:
            KeyError: it does not wait here.
        """
        batch = self._batch.get(action)
        if batch is None:
            return self._alone.key(action)
        group = self._groups[batch]
        return group.queue.key(action)._replace(expected_completion_s=group.due_s)

    def head(self) -> str:
        """The first to go.

        Raises:
            IndexError: the queue is empty.
        """
        if not self._alone:  # on the hot path: no key is made
            order = self._order
            if len(order) == 1 or (order and order[0][0] < order[1][0]):
                return self._groups[order[0][1]].queue.head()
        return self.peek()[1]

    def peek(self) -> tuple[EbfKey, str]:
        """Key and action of the first to go.

        Raises:
            IndexError: the queue is empty.
        """
        first: tuple[EbfKey, str] | None = self._alone.peek() if self._alone else None
        for due_s, batch in self._order:
            if first is not None and due_s > first[0].expected_completion_s:
                break
            key, action = self._groups[batch].queue.peek()
            key = EbfKey(due_s, key.priority, key.arrival)
            if first is None or key < first[0]:
                first = key, action
        if first is None:
            raise IndexError("the queue is empty")
        return first

    def __iter__(self) -> Iterator[str]:
        """Every action, first to go first; stop when enough is seen. The queue must not change meanwhile.

        Raises:
            RuntimeError: the queue changed during the walk.
        """
        grouped = (action for together in self._together() for action in together)
        return heapq.merge(self._alone, grouped, key=self.key) if self._alone else grouped

    def _together(self) -> Iterator[Iterable[str]]:
        """The batches of each T, merged."""
        for _, entries in groupby(self._order, key=itemgetter(0)):
            queues = [self._groups[batch].queue for _, batch in entries]
            yield queues[0] if len(queues) == 1 else heapq.merge(*queues, key=self.key)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        self._alone.check()
        assert self._order == sorted((group.due_s, batch) for batch, group in self._groups.items()), "one place a batch"
        for batch, group in self._groups.items():
            group.queue.check()
            assert group.queue, f"{batch} has no waiting action"
            assert all(self._batch[action] == batch for action in group.queue), f"{batch}: its actions"
        assert len(self._batch) == sum(len(group.queue) for group in self._groups.values()), "each in one batch"
