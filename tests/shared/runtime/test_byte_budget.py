"""Memory that callers share: bounds, turns, cancellation."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.runtime.byte_budget import ByteBudget, ByteShare


def taking(budget: ByteBudget, owner: str, amount: int) -> tuple[ByteShare, asyncio.Task[None]]:
    share = budget.share(owner)
    return share, asyncio.create_task(share.take(amount))


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_owner_has_its_part_and_leaves_the_rest_to_others() -> None:
    budget = ByteBudget(100, 40)
    (first, one), (_, two), (_, other) = taking(budget, "a", 40), taking(budget, "a", 1), taking(budget, "b", 40)
    await settled()
    assert (one.done(), two.done(), other.done(), budget.held) == (True, False, True, 80)

    first.keep(39)
    await settled()
    assert (two.done(), budget.held) == (True, 80)


async def test_a_large_share_is_not_overtaken() -> None:
    budget = ByteBudget(100, 100)
    (held, _), (_, large) = taking(budget, "a", 60), taking(budget, "b", 70)
    await settled()
    _, small = taking(budget, "c", 10)
    await settled()
    assert (large.done(), small.done()) == (False, False)

    held.keep(0)
    await settled()
    assert (large.done(), small.done(), budget.held) == (True, True, 80)


async def test_owners_take_turns() -> None:
    budget = ByteBudget(10, 10)
    share, _ = taking(budget, "x", 10)
    await settled()
    order: list[str] = []

    async def take(owner: str) -> None:
        with budget.share(owner) as mine:
            await mine.take(10)
            order.append(owner)

    tasks = [asyncio.create_task(take(owner)) for owner in "aaabbc"]
    await settled()
    share.keep(0)
    await asyncio.gather(*tasks)

    assert "".join(order) == "abcaba"
    assert budget.held == 0


async def test_who_is_cancelled_holds_nothing_and_lets_others_pass() -> None:
    budget = ByteBudget(100, 100)
    (held, _), (_, large), (_, small) = taking(budget, "a", 60), taking(budget, "b", 70), taking(budget, "c", 10)
    await settled()
    large.cancel()
    await settled()
    assert (large.cancelled(), small.done(), budget.held) == (True, True, 70)

    _, late = taking(budget, "d", 100)
    await settled()
    held.keep(0)  # 30 are missing still
    late.cancel()
    await settled()
    assert (late.cancelled(), budget.held) == (True, 10)


async def test_a_share_that_is_granted_to_a_cancelled_caller_is_returned() -> None:
    budget = ByteBudget(100, 100)
    (held, _), (_, second) = taking(budget, "a", 60), taking(budget, "b", 70)
    await settled()
    held.keep(0)  # granted, and not yet awake
    second.cancel()
    await settled()
    assert (second.cancelled(), budget.held) == (True, 0)


async def test_a_share_is_taken_once_and_of_what_an_owner_can_have() -> None:
    budget = ByteBudget(100, 40)
    with budget.share("a") as share:
        with pytest.raises(ValueError, match="cannot become"):
            await share.take(41)
        await share.take(40)
        with pytest.raises(ValueError, match="cannot become"):
            await share.take(1)
    assert budget.held == 0
    with pytest.raises(ValueError, match="an owner cannot have"):
        ByteBudget(10, 11)


Interleavings = st.lists(
    st.tuples(st.sampled_from(["take", "keep", "cancel"]), st.sampled_from("abc"), st.integers(1, 40)), max_size=40
)


@given(Interleavings)
def test_bounds_hold_and_everybody_is_served(steps: list[tuple[str, str, int]]) -> None:
    async def run() -> None:
        budget = ByteBudget(100, 40)
        callers: list[tuple[str, ByteShare, asyncio.Task[None]]] = []
        for step, owner, amount in steps:
            if step == "take":
                callers.append((owner, *taking(budget, owner, amount)))
            for name, share, task in callers:
                if name == owner and step == "keep":
                    share.keep(amount // 2)
                elif name == owner and step == "cancel":
                    task.cancel()
            await settled()
            by_owner = {name: sum(share.held for other, share, _ in callers if other == name) for name in "abc"}
            assert budget.held == sum(by_owner.values()) <= 100
            assert max(by_owner.values()) <= 40
        for _ in callers:
            for _, share, _ in callers:
                share.keep(0)
            await settled()
        assert all(task.done() for _, _, task in callers)
        assert budget.held == 0

    asyncio.run(run())
