"""EBF order: laws of the key's estimates, and the queue against a sorted list."""

from __future__ import annotations

import bisect
import math
import random
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.policy.order.ebf import EbfKey, EbfQueue, expected_completion, reestimate

seconds = st.floats(0, 1e6)
keys = st.builds(
    EbfKey,
    st.sampled_from([0.0, 1.0, 1.5, 7.0]),
    st.sampled_from([-1.0, 0.0, 2.0]),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
)


def test_the_batch_that_could_be_complete_first_goes_first_then_priority_then_arrival() -> None:
    soon, urgent, early, late = (
        EbfKey(10.0, 9.0, (900, 0)),
        EbfKey(20.0, 0.0, (800, 0)),
        EbfKey(20.0, 1.0, (9, 0)),
        EbfKey(20.0, 1.0, (10, 0)),
    )
    queue: EbfQueue[str] = EbfQueue()
    for key, item in ((late, "late"), (early, "early"), (urgent, "urgent"), (soon, "soon")):
        queue.push(key, item)
    assert list(queue) == ["soon", "urgent", "early", "late"]


def test_without_history_a_batch_is_expected_after_all_its_timeouts() -> None:
    assert expected_completion(100.0, [10.0, 30.0]) == 140.0


def test_with_history_a_batch_is_expected_when_the_last_one_could_have_been_complete() -> None:
    assert expected_completion(100.0, [10.0, 30.0], 12.5) == 112.5


@pytest.mark.parametrize("ahead", [-1.0, math.inf, math.nan])
def test_an_expectation_that_could_starve_is_refused(ahead: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        expected_completion(0.0, [1.0], ahead)


@given(seconds, seconds, seconds, seconds, st.none() | st.floats(1e-3, 1e6))
def test_a_reestimate_never_passes_the_bound_the_proposal_or_one_step(
    current: float, proposed: float, first: float, bound: float, step: float | None
) -> None:
    new = reestimate(current, proposed, first, bound, step_s=step)
    assert new <= first + bound
    assert new <= proposed
    assert new <= current + (bound / 10 if step is None else step)
    assert new in (proposed, first + bound) or new > current or bound == 0 or current + (step or bound / 10) == current


@given(seconds, st.floats(1, 1e4))
def test_the_latest_expectation_is_reached_in_bounded_steps_and_kept(first: float, bound: float) -> None:
    seen = [first]
    for _ in range(11):
        seen.append(reestimate(seen[-1], math.inf, first, bound))
    assert seen == sorted(seen)
    assert seen[-1] == first + bound
    assert seen[1] < first + bound


def test_an_earlier_estimate_is_taken_at_once() -> None:
    assert reestimate(500.0, 20.0, first_arrival_s=0.0, bound_s=600.0) == 20.0


@pytest.mark.parametrize(("proposed", "bound", "step"), [(math.nan, 1.0, None), (1.0, -1.0, None), (1.0, 1.0, 0.0)])
def test_a_senseless_reestimate_is_refused(proposed: float, bound: float, step: float | None) -> None:
    with pytest.raises(ValueError, match="cannot re-estimate"):
        reestimate(0.0, proposed, 0.0, bound, step_s=step)


def test_equal_keys_leave_in_the_order_they_came() -> None:
    queue: EbfQueue[str] = EbfQueue()
    for item in ("first", "second", "third"):
        queue.push(EbfKey(1.0, 0.0, (0, 0)), item)
    assert [queue.pop()[1] for _ in range(3)] == ["first", "second", "third"]


def test_an_empty_queue_has_no_first() -> None:
    queue: EbfQueue[str] = EbfQueue()
    for take in (queue.peek, queue.pop):
        with pytest.raises(IndexError, match="empty"):
            take()


def test_an_id_waits_once_and_a_key_without_a_place_is_refused() -> None:
    queue: EbfQueue[str] = EbfQueue()
    queue.push(EbfKey(1.0, 0.0, (0, 0)), "a")
    with pytest.raises(ValueError, match="queued already"):
        queue.push(EbfKey(2.0, 0.0, (0, 1)), "a")
    with pytest.raises(ValueError, match="no place"):
        queue.update(EbfKey(math.nan, 0.0, (0, 1)), "a")
    assert queue.peek() == (EbfKey(1.0, 0.0, (0, 0)), "a")
    with pytest.raises(KeyError):
        queue.remove("b")


@pytest.mark.parametrize("change", ["push", "remove", "update"])
def test_a_walk_over_a_changing_queue_is_an_error_not_a_wrong_order(change: str) -> None:
    queue: EbfQueue[int] = EbfQueue()
    for item in range(4):
        queue.push(EbfKey(float(item), 0.0, (item, 0)), item)
    walk = iter(queue)
    next(walk)
    key = EbfKey(9.0, 0.0, (9, 0))
    if change == "push":
        queue.push(key, 9)
    elif change == "remove":
        queue.remove(3)
    else:
        queue.update(key, 3)
    with pytest.raises(RuntimeError, match="changed"):
        next(walk)


def test_looking_at_the_first_does_not_disturb_a_walk() -> None:
    queue: EbfQueue[int] = EbfQueue()
    for item in range(4):
        queue.push(EbfKey(float(item), 0.0, (item, 0)), item)
    queue.remove(0)
    walk = iter(queue)
    assert [next(walk), queue.peek()[1], *walk] == [1, 1, 2, 3]


class QueueAgainstSortedList(RuleBasedStateMachine):
    """The model is a list of (key, serial, id), sorted."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: EbfQueue[int] = EbfQueue()
        self.model: list[tuple[EbfKey, int, int]] = []
        self.serial = 0

    def _add(self, key: EbfKey, item: int) -> None:
        self.serial += 1
        self.model = sorted([*self.model, (key, self.serial, item)])

    @rule(key=keys)
    def push(self, key: EbfKey) -> None:
        item = self.serial + 1000
        self._add(key, item)
        self.queue.push(key, item)

    @rule(count=st.integers(1, 150))
    def push_many_and_remove_them(self, count: int) -> None:
        for item in range(count):
            self.queue.push(EbfKey(0.0, 0.0, (item, 0)), -item - 1)
        for item in range(count):
            self.queue.remove(-item - 1)
        self.serial += count

    @rule(count=st.integers(1, 300), chosen=st.randoms(use_true_random=False))
    def push_more_than_the_front_holds(self, count: int, chosen: random.Random) -> None:
        for _ in range(count):
            key, item = EbfKey(chosen.choice([0.0, 1.0, 5.0]), 0.0, (chosen.randrange(9), 0)), self.serial + 1000
            self._add(key, item)
            self.queue.push(key, item)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), key=keys)
    def update(self, data: st.DataObject, key: EbfKey) -> None:
        entry = data.draw(st.sampled_from(self.model))
        self.model.remove(entry)
        self._add(key, entry[2])
        self.queue.update(key, entry[2])
        assert self.queue.key(entry[2]) == key

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.model))
        self.model.remove(entry)
        assert self.queue.remove(entry[2]) == entry[0]
        assert entry[2] not in self.queue

    @precondition(lambda self: self.model)
    @rule()
    def pop(self) -> None:
        key, _, item = self.model.pop(0)
        assert self.queue.peek() == (key, item)
        assert self.queue.pop() == (key, item)

    @rule(count=st.integers(0, 5))
    def walk_a_prefix(self, count: int) -> None:
        assert list(islice(self.queue, count)) == [item for _, _, item in self.model[:count]]

    @invariant()
    def same_as_the_list(self) -> None:
        self.queue.check()
        assert len(self.queue) == len(self.model)
        assert list(self.queue) == [item for _, _, item in self.model]
        assert all(item in self.queue for _, _, item in self.model)


TestQueueAgainstSortedList = QueueAgainstSortedList.TestCase
TestQueueAgainstSortedList.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("seed", range(6))
def test_a_long_queue_that_is_seldom_walked_keeps_the_order(seed: int) -> None:
    """The machine above walks after every step; here whatever is lazy piles up."""
    chosen, queue, model = random.Random(seed), EbfQueue[int](), list[tuple[EbfKey, int]]()
    late = seed % 2
    for item in range(6000):
        action = chosen.random()
        if action < 0.55 or not model:
            newest = item if late else chosen.randrange(6000)
            entry = EbfKey(float(newest // 500), chosen.choice([0.0, 1.0]), (newest, item)), item
            bisect.insort(model, entry)
            queue.push(*entry)
        elif action < 0.75:
            assert queue.pop() == model.pop(0)
        elif action < 0.95:  # what passes a head that must wait, as a rule from the front
            _, gone = model.pop(min(len(model) - 1, chosen.randrange(chosen.choice([2, 70, 4000]))))
            queue.remove(gone)
        elif action < 0.96:
            depth = chosen.choice([1, 64, 500])
            assert list(islice(queue, depth)) == [waiting for _, waiting in model[:depth]]
            queue.check()
    assert list(queue) == [waiting for _, waiting in model]
