"""Turns between flows: the laws at the head of the module, by a record of what was put and what left."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.policy.order import turns
from shared.policy.order.turns import NO_FLOW, TurnQueue


@dataclass(frozen=True)
class Put:
    """One item that is put; `flow` None: after all."""

    flow: str | None
    names: tuple[str, ...] = ()


@dataclass
class Recorded:
    """A queue whose items are their numbers, and when each was put and left."""

    queue: TurnQueue[int] = field(default_factory=TurnQueue)
    puts: list[Put] = field(default_factory=list)
    put_at: list[int] = field(default_factory=list)
    """By item: how many had left when it was put."""
    left: list[int] = field(default_factory=list)

    def put(self, put: Put) -> None:
        item = len(self.puts)
        self.puts.append(put)
        self.put_at.append(len(self.left))
        if put.flow is None:
            self.queue.put_after_all(item)
        else:
            self.queue.put(put.flow, item, put.names)

    def pop(self) -> None:
        if self.queue:
            expected = self.queue.peek()
            self.left.append(self.queue.pop())
            assert self.left[-1] == expected, "the item that leaves is the one that was shown"
        assert len(self.queue) == len(self.puts) - len(self.left)

    def drain(self) -> None:
        while self.queue:
            self.pop()
        with pytest.raises(IndexError):
            self.queue.pop()

    def before(self, one: int, other: int) -> bool:
        return self.left.index(one) < self.left.index(other)


flows = st.sampled_from([NO_FLOW, "ada", "bob", "cyd"])
names = st.lists(st.sampled_from("xyz"), unique=True, max_size=2).map(tuple)
steps = st.lists(st.one_of(st.none(), st.builds(Put, st.one_of(st.none(), flows), names)), max_size=60)
"""None: one item leaves."""


def run(given_steps: list[Put | None], recent: int) -> Recorded:
    recorded = Recorded()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(turns, "RECENT", recent)
        for step in given_steps:
            recorded.pop() if step is None else recorded.put(step)
        recorded.drain()
    return recorded


@given(steps, st.sampled_from([1, 4, 1000]))
def test_every_item_leaves_once(given_steps: list[Put | None], recent: int) -> None:
    recorded = run(given_steps, recent)
    assert sorted(recorded.left) == list(range(len(recorded.puts)))


@given(steps, st.sampled_from([1, 4, 1000]))
def test_items_that_share_a_name_leave_in_order_whatever_their_flows(
    given_steps: list[Put | None], recent: int
) -> None:
    recorded = run(given_steps, recent)
    for late, put in enumerate(recorded.puts):
        for early in range(late):
            if set(put.names) & set(recorded.puts[early].names) and put.flow is not None:
                assert recorded.puts[early].flow is None or recorded.before(early, late)


@given(steps, st.sampled_from([1, 4, 1000]))
def test_an_item_put_after_all_leaves_between_earlier_and_later_ones(
    given_steps: list[Put | None], recent: int
) -> None:
    recorded = run(given_steps, recent)
    for item, put in enumerate(recorded.puts):
        if put.flow is None:
            place = recorded.left.index(item)
            assert set(recorded.left[:place]) == set(range(item))


plain = st.builds(Put, st.sampled_from(["ada", "bob", "cyd"]))


@given(st.lists(st.one_of(st.none(), plain), max_size=60), st.sampled_from([1, 4, 1000]))
def test_no_item_waits_for_more_than_its_turns(given_steps: list[Put | None], recent: int) -> None:
    recorded = run(given_steps, recent)
    place = {item: index for index, item in enumerate(recorded.left)}
    for item, put in enumerate(recorded.puts):
        passed = [recorded.puts[other].flow for other in recorded.left[recorded.put_at[item] : place[item]]]
        ahead = passed.count(put.flow)
        for flow in {"ada", "bob", "cyd"} - {put.flow}:
            assert passed.count(flow) <= ahead + 1, f"{flow} passed {put.flow} too often"


@given(st.lists(st.one_of(st.none(), plain), max_size=60), st.sampled_from([1, 4, 1000]))
def test_items_of_one_flow_leave_in_order(given_steps: list[Put | None], recent: int) -> None:
    recorded = run(given_steps, recent)
    for flow in ("ada", "bob", "cyd"):
        of_flow = [item for item in recorded.left if recorded.puts[item].flow == flow]
        assert of_flow == sorted(of_flow)


def test_one_item_beside_a_thousand_of_another_flow_leaves_second() -> None:
    queue: TurnQueue[str] = TurnQueue()
    for number in range(1000):
        queue.put("ada", f"a{number}", ("batch",))
    queue.put("bob", "b", ("other",))
    assert [queue.pop() for _ in range(3)] == ["a0", "b", "a1"]
    assert len(queue) == 998


def test_a_name_takes_an_item_into_the_flow_where_its_fellow_waits() -> None:
    queue: TurnQueue[str] = TurnQueue()
    for number in range(3):
        queue.put("ada", f"a{number}", (f"action{number}",))
    for number in range(3):
        queue.put("bob", f"b{number}")
    queue.put(NO_FLOW, "revoke a2", ("action2",))
    queue.put(NO_FLOW, "free")
    assert [queue.pop() for _ in range(8)] == ["a0", "b0", "free", "a1", "b1", "a2", "b2", "revoke a2"]


def test_a_queue_is_shared_while_others_wait_or_have_left_recently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "RECENT", 4)
    queue: TurnQueue[int] = TurnQueue()
    for number in range(6):
        queue.put("ada", number)
    assert not queue.shared, "one flow"
    queue.put("bob", 6)
    assert queue.shared, "two flows wait"
    assert queue.take(2) == [0, 6]
    assert queue.shared, "bob has just left"
    queue.take(5)
    assert not queue.shared, "ada is alone again"


def test_items_without_a_flow_make_no_queue_shared() -> None:
    queue: TurnQueue[int] = TurnQueue()
    queue.put("ada", 1)
    queue.put(NO_FLOW, 2)
    queue.put("ada", 3)
    assert not queue.shared
    assert queue.take(3) == [1, 2, 3]


def test_items_pass_without_waiting_only_while_their_flow_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "RECENT", 4)
    queue: TurnQueue[int] = TurnQueue()
    assert queue.skip("ada", 10)
    assert queue.skip(NO_FLOW, 1)
    assert not queue.skip("bob", 1), "ada was served last"
    queue.put("bob", 1)
    assert not queue.skip("bob", 1), "an item waits"
    assert queue.take(1) == [1]
    assert not queue.skip("bob", 1), "ada has left recently"
    for _ in range(4):
        queue.put("bob", 2)
    queue.take(4)
    assert queue.skip("bob", 1)


def test_an_item_whose_names_wait_in_two_flows_leaves_after_all() -> None:
    queue: TurnQueue[str] = TurnQueue()
    queue.put("ada", "a", ("x",))
    queue.put("bob", "b0")
    queue.put("bob", "b1", ("y",))
    queue.put(NO_FLOW, "both", ("x", "y"))
    queue.put("ada", "later")
    assert queue.take(5) == ["a", "b0", "b1", "both", "later"]


def test_a_part_ends_when_the_others_have_left_with_it() -> None:
    queue: TurnQueue[str] = TurnQueue()
    for number in range(100):
        queue.put("ada", f"a{number}")
    queue.put("bob", "b0")
    queue.put("bob", "b1")
    assert queue.take(16) == ["a0", "b0", "a1", "b1"], "bob does not wait for more of ada's"
    assert len(queue.take(16)) == 16, "a part of one flow has its full size"
    queue.put("bob", "b2")
    queue.put("cyd", "c0")
    assert queue.take(16) == ["a18", "b2", "c0"]


def test_a_part_ends_before_an_item_that_is_not_accepted() -> None:
    queue: TurnQueue[int] = TurnQueue()
    for number in range(9):
        queue.put("ada", number)
    assert queue.take(8, lambda item: item != 3) == [0, 1, 2]
    assert queue.take(8, lambda item: item != 3) == []
    assert queue.take(2) == [3, 4]


@given(steps, st.sampled_from([1, 4, 1000]), st.integers(1, 9))
def test_parts_leave_in_the_order_of_single_items(given_steps: list[Put | None], recent: int, most: int) -> None:
    """Taking parts instead of items changes where one ends, never the order."""
    single, parted = Recorded(), Recorded()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(turns, "RECENT", recent)
        for put in given_steps:
            if put is not None:
                single.put(put)
                parted.put(put)
        single.drain()
        parts = []
        while parted.queue:
            parts.append(parted.queue.take(most))
    assert [item for part in parts for item in part] == single.left
    assert all(0 < len(part) <= most for part in parts)
