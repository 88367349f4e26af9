"""Waiting actions of one tenant in EBF order, with one entry for each batch: a batch moves without its requests.

The key of a request is (T of its batch, priority, arrival). Within a batch T is the same for all, so the batch's own
queue orders by (priority, arrival), and batches are ordered by T. Actions outside batches have keys of their own.
Merged by their heads, both give the order of one queue over all keys (tests/shared/policy/order/test_batchqueue.py).
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
    """EBF queue with one entry for each batch.

    `push`, `update`, `discard` and `head` cost as much as in `EbfQueue`, plus a search among the batches. `move` costs
    a search among the batches, however many of the batch's requests wait.
    """

    _alone: EbfQueue[str] = field(default_factory=EbfQueue)
    """Actions outside batches."""
    _groups: dict[str, _Group] = field(default_factory=dict)
    """Batches with waiting actions."""
    _order: list[tuple[float, str]] = field(default_factory=list)
    """(T, batch), ascending."""
    _batch: dict[str, str] = field(default_factory=dict)
    """Action -> its batch."""

    def __len__(self) -> int:
        return len(self._alone) + len(self._batch)

    def push(self, key: EbfKey, action: str, batch: str = "") -> None:
        """Add an action. All actions of a batch get the newest T.

        Raises:
            ValueError: it waits already, or its key is not a number and cannot be ordered.
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
        """Remove an action; False if it does not wait here."""
        batch = self._batch.pop(action, None)
        if batch is None:
            return self._alone.discard(action)
        group = self._groups[batch]
        group.queue.discard(action)
        if not group.queue:
            self._remove_group(batch, group)
        return True

    def update(self, key: EbfKey, action: str) -> bool:
        """Give an action another key; False if it does not wait here. All actions of its batch get the key's T.

        Raises:
            ValueError: the key is not a number and cannot be ordered; nothing has changed.
        """
        batch = self._batch.get(action)
        queue = self._alone if batch is None else self._groups[batch].queue
        if action not in queue:
            return False
        if batch is None:
            queue.update(key, action)
            return True
        if key.expected_completion_s != key.expected_completion_s:
            raise ValueError(f"{action!r} has no place in the order: {key}")
        queue.update(EbfKey(0.0, key.priority, key.arrival), action)
        self.move(batch, key.expected_completion_s)
        return True

    def discard_batch(self, batch: str) -> list[str]:
        """Remove the actions of a batch. Returns them, in no order. O(actions)."""
        group = self._groups.get(batch)
        if group is None:
            return []
        self._remove_group(batch, group)
        removed = group.queue.waiting()
        for action in removed:
            del self._batch[action]
        return removed

    def _remove_group(self, batch: str, group: _Group) -> None:
        del self._groups[batch]
        del self._order[bisect.bisect_left(self._order, (group.due_s, batch))]

    def move(self, batch: str, due_s: float) -> None:
        """Set a batch's T; no effect if none of its actions wait here."""
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
        """Return the first action.

        Raises:
            IndexError: the queue is empty.
        """
        order = self._order  # hot paths: no key is made
        if not order:
            return self._alone.head()
        if not self._alone and (len(order) == 1 or order[0][0] < order[1][0]):
            return self._groups[order[0][1]].queue.head()
        return self.peek()[1]

    def peek(self) -> tuple[EbfKey, str]:
        """Key and id of the first action.

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
        """Every action in order; stop at any point. The queue must not change meanwhile.

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
