"""The queue with one entry for each batch: its order is that of one sorted list over all keys."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.policy.order.batchqueue import BatchQueue
from shared.policy.order.ebf import EbfKey, EbfQueue

BATCHES = ("", "b1", "b2", "b3")
moments = st.integers(0, 4).map(float)


class Merged(RuleBasedStateMachine):
    """Against a dict of keys: T of a batch is the same for all of it, and batches may share one."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = BatchQueue()
        self.keys: dict[str, tuple[str, EbfKey]] = {}
        self.count = 0

    @rule(batch=st.sampled_from(BATCHES), due_s=moments, priority=st.integers(0, 2))
    def push(self, batch: str, due_s: float, priority: int) -> None:
        self.count += 1
        key, action = EbfKey(due_s, priority, (0, self.count)), f"a{self.count}"
        self.queue.push(key, action, batch)
        if batch:
            self.moved(batch, due_s)
        self.keys[action] = batch, key

    @rule(batch=st.sampled_from(BATCHES[1:]), due_s=moments)
    def move(self, batch: str, due_s: float) -> None:
        self.queue.move(batch, due_s)
        self.moved(batch, due_s)

    def moved(self, batch: str, due_s: float) -> None:
        for action, (its, key) in self.keys.items():
            if its == batch:
                self.keys[action] = its, key._replace(expected_completion_s=due_s)

    @precondition(lambda self: self.keys)
    @rule(which=st.integers(0, 99), due_s=moments, priority=st.integers(0, 2))
    def update(self, which: int, due_s: float, priority: int) -> None:
        action = list(self.keys)[which % len(self.keys)]
        batch, old = self.keys[action]
        assert self.queue.update(EbfKey(due_s, priority, old.arrival), action)
        if batch:
            self.moved(batch, due_s)
        self.keys[action] = batch, EbfKey(due_s, priority, old.arrival)

    @precondition(lambda self: self.keys)
    @rule(which=st.integers(0, 99))
    def discard(self, which: int) -> None:
        action = list(self.keys)[which % len(self.keys)]
        del self.keys[action]
        assert self.queue.discard(action)
        assert not self.queue.discard(action)

    @precondition(lambda self: self.keys)
    @rule()
    def discard_the_head(self) -> None:
        head = self.queue.head()
        del self.keys[head]
        assert self.queue.discard(head)

    @invariant()
    def the_order_is_that_of_the_keys(self) -> None:
        self.queue.check()
        order = sorted(self.keys, key=lambda action: self.keys[action][1])
        assert list(self.queue) == order
        assert len(self.queue) == len(order)
        if order:
            assert self.queue.peek() == (self.keys[order[0]][1], order[0])
            assert self.queue.head() == order[0]
            assert self.queue.key(order[-1]) == self.keys[order[-1]][1]


TestMerged = Merged.TestCase
TestMerged.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_an_empty_queue_has_no_head() -> None:
    for ask in (BatchQueue().peek, BatchQueue().head):
        with pytest.raises(IndexError, match="the queue is empty"):
            ask()


def test_a_key_that_is_not_a_number_has_no_place() -> None:
    queue = BatchQueue()
    with pytest.raises(ValueError, match="has no place"):
        queue.push(EbfKey(math.nan, 0.0, (0, 1)), "a", "b1")
    assert len(queue) == 0


@pytest.mark.parametrize("batch", BATCHES[:2])
@pytest.mark.parametrize("key", [EbfKey(math.nan, 0.0, (0, 1)), EbfKey(0.0, math.nan, (0, 1))])
def test_an_update_with_a_key_that_is_not_a_number_changes_nothing(batch: str, key: EbfKey) -> None:
    queue = BatchQueue()
    queue.push(EbfKey(5.0, 0.0, (0, 1)), "a", batch)
    with pytest.raises(ValueError, match="has no place"):
        queue.update(key, "a")
    assert queue.peek() == (EbfKey(5.0, 0.0, (0, 1)), "a")


def test_an_update_of_an_unknown_action_changes_nothing() -> None:
    queue = BatchQueue()
    assert not queue.update(EbfKey(5.0, 0.0, (0, 1)), "a")
    assert len(queue) == 0


def test_a_batch_moves_without_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: 5,000 waiting requests take as many steps as one."""
    queue = BatchQueue()
    for at in range(5_000):
        queue.push(EbfKey(5.0, 0.0, (0, at)), f"a{at}", "b1")
        queue.push(EbfKey(6.0, 0.0, (1, at)), f"b{at}", "b2")
    touched: list[str] = []
    monkeypatch.setattr(EbfQueue, "push", lambda _, __, action: touched.append(action))
    monkeypatch.setattr(EbfQueue, "discard", lambda _, action: touched.append(action))
    queue.move("b1", 7.0)
    assert queue.head() == "b0"
    queue.move("b1", 4.0)
    assert queue.head() == "a0"
    assert touched == []
