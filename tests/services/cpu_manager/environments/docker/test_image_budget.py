"""Disk budget of images: only unused images that we pulled are removed, the least recently used first."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from services.cpu_manager.environments.docker.engine import EngineRefusal
from services.cpu_manager.environments.docker.image_budget import ImageBudget, StoredImageLedger
from shared.bus.connection import connect
from tests.services.cpu_manager.node_parts import ManualClock


class ImageStore:
    """An engine's images. `used`: by containers of others."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = {f"{name}:1": size for name, size in sizes.items()}
        self.used: set[str] = set()
        self.removed: list[str] = []

    async def images(self) -> list[dict[str, Any]]:
        return [{"RepoTags": [name], "Size": size} for name, size in self.sizes.items()]

    async def remove_image(self, name: str) -> None:
        if name in self.used:
            raise EngineRefusal(409, "conflict: unable to remove: container is using its referenced image")
        if name not in self.sizes:
            raise EngineRefusal(404, "No such image")
        await asyncio.sleep(0)
        del self.sizes[name]
        self.removed.append(name)


class ImageBudgetDriver:
    """A budget of 100 bytes, and pulls that take a second each."""

    def __init__(self, store: ImageStore) -> None:
        self.store, self.clock = store, ManualClock()
        self.image_budget = ImageBudget(store, budget_bytes=100, clock=self.clock)

    async def pull(self, name: str, size: int) -> None:
        self.clock.now += 1
        await self.image_budget.record_pull(name)
        self.store.sizes[name] = size
        await self.image_budget.record_present(name, size)
        await self.image_budget.trim([name])

    async def use(self, name: str) -> None:
        self.clock.now += 1
        await self.image_budget.record_present(name, self.store.sizes[name])


async def opened_budget(**sizes: int) -> ImageBudgetDriver:
    made = ImageBudgetDriver(ImageStore(**sizes))
    await made.image_budget.open()
    return made


async def test_the_least_recently_used_image_goes_first() -> None:
    node = await opened_budget()
    for name in "abc":
        await node.pull(f"{name}:1", 30)
    await node.use("a:1")
    await node.pull("d:1", 30)
    assert node.store.removed == ["b:1"]


async def test_images_of_others_stay_whatever_their_size() -> None:
    node = await opened_budget(theirs=10_000)
    await node.pull("a:1", 60)
    await node.pull("b:1", 60)
    assert node.store.removed == ["a:1"]
    assert node.image_budget.reported() == {"theirs:1", "b:1"}


async def test_an_image_in_use_stays_until_its_release() -> None:
    node = await opened_budget()
    for name in ("python", "python:latest"):  # spellings of one image
        node.image_budget.hold(name)
    await node.pull("python", 80)
    await node.pull("b:1", 80)
    assert node.store.removed == []
    node.image_budget.release("docker.io/library/python")
    await node.image_budget.trim(["b:1"])
    assert node.store.removed == []
    node.image_budget.release("python")
    node.store.sizes["python:latest"] = node.store.sizes.pop("python")
    await node.image_budget.trim(["b:1"])
    assert node.store.removed == ["python:latest"]


async def test_an_image_in_use_by_another_container_stays_and_the_next_is_removed() -> None:
    node = await opened_budget()
    await node.pull("a:1", 40)
    await node.pull("b:1", 40)
    node.store.used = {"a:1"}
    await node.pull("c:1", 40)
    assert node.store.removed == ["b:1"]


async def test_an_image_that_is_larger_than_the_budget_stays_while_it_is_wanted() -> None:
    node = await opened_budget()
    await node.pull("a:1", 40)
    await node.pull("huge:1", 400)
    assert node.store.removed == ["a:1"]
    await node.pull("b:1", 40)
    assert node.store.removed == ["a:1", "huge:1"]


async def test_a_request_for_an_image_waits_for_the_end_of_its_removal() -> None:
    node = await opened_budget()
    await node.pull("a:1", 40)
    removing = asyncio.create_task(node.image_budget.remove_oldest())
    await asyncio.sleep(0)
    node.image_budget.hold("a:1")
    await node.image_budget.wait_for_removal("a:1")
    assert await removing
    assert "a:1" not in node.store.sizes


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["pull", "use", "hold", "release"])), max_size=40))
def test_whatever_happens_the_rest_is_within_the_budget_or_in_use(steps: list[tuple[str, str]]) -> None:
    """Oracle: sizes of 40 bytes, so two unused ones fit, and the third is removed."""

    async def play() -> None:
        node = await opened_budget(f=40)
        held: list[str] = []
        for letter, what in steps:
            name = f"{letter}:1"
            if what == "pull" and name not in node.store.sizes:
                await node.pull(name, 40)
            elif what == "use" and name in node.store.sizes:
                await node.use(name)
            elif what == "hold" and name in node.store.sizes:
                node.image_budget.hold(name)
                held.append(name)
            elif what == "release" and name in held:
                node.image_budget.release(name)
                held.remove(name)
                await node.image_budget.trim()
            assert set(held) <= node.store.sizes.keys(), "one in use is gone"
            assert "f:1" in node.store.sizes, "one that we did not pull is gone"
        await node.image_budget.trim()
        free = [name for name in node.store.sizes if name not in held and name != "f:1"]
        assert node.image_budget.bytes_ours <= 100 or not free

    asyncio.run(play())


async def test_the_ledger_of_images_survives_the_manager(redis_url: str) -> None:
    store = ImageStore(theirs=500)
    async with connect(redis_url, name="test") as redis:
        first = ImageBudget(store, _ledger(redis), budget_bytes=100, clock=ManualClock(1000.0))
        await first.open()
        for name in ("a:1", "b:1"):
            await first.record_pull(name)
            store.sizes[name] = 60
        # The manager is killed here: it never saw the end of its pulls.
        del store.sizes["b:1"]
        second = ImageBudget(store, _ledger(redis), budget_bytes=10, clock=ManualClock(2000.0))
        await second.open()
        assert second.bytes_ours == 60
        await second.trim()
        assert store.removed == ["a:1"]
        assert await _ledger(redis).read() == {}
        assert await StoredImageLedger(redis, "n", "another engine").read() == {}


async def test_a_store_that_is_away_costs_no_work() -> None:
    async with connect("unix:///nowhere/valkey.sock", name="test") as redis:
        image_budget = ImageBudget(ImageStore(a=1), _ledger(redis))
        await image_budget.open()
        await image_budget.record_pull("b:1")
        assert image_budget.reported() == {"a:1"}


def _ledger(redis: Redis) -> StoredImageLedger:
    return StoredImageLedger(redis, "n", "engine")


@pytest.mark.parametrize("listed", [{"RepoTags": None, "RepoDigests": None}, {"RepoTags": ["<none>:<none>"]}])
async def test_images_without_a_name_are_skipped(listed: dict[str, Any]) -> None:
    class StoreOfUntaggedImages(ImageStore):
        async def images(self) -> list[dict[str, Any]]:
            return [listed]

    image_budget = ImageBudget(StoreOfUntaggedImages())
    await image_budget.open()
    assert image_budget.reported() == frozenset()
