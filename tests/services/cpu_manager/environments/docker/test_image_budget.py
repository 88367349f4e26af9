"""The disk budget of images: only what we pulled and nobody uses is removed, the least recently used first."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from services.cpu_manager.environments.docker.engine import EngineRefusal
from services.cpu_manager.environments.docker.image_budget import ImageBudget
from services.cpu_manager.environments.docker.ledger import StoreLedger
from shared.bus.connection import connect
from tests.services.cpu_manager.node_parts import ManualClock


class Shelf:
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


class Desk:
    """A budget of 100 bytes, and pulls that take a second each."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf, self.clock = shelf, ManualClock()
        self.keeping = ImageBudget(shelf, budget_bytes=100, clock=self.clock)

    async def pull(self, name: str, size: int) -> None:
        self.clock.now += 1
        await self.keeping.pulling(name)
        self.shelf.sizes[name] = size
        await self.keeping.found(name, size)
        await self.keeping.trim([name])

    async def use(self, name: str) -> None:
        self.clock.now += 1
        await self.keeping.found(name, self.shelf.sizes[name])


async def desk(**sizes: int) -> Desk:
    made = Desk(Shelf(**sizes))
    await made.keeping.open()
    return made


async def test_the_least_recently_used_image_goes_first() -> None:
    node = await desk()
    for name in "abc":
        await node.pull(f"{name}:1", 30)
    await node.use("a:1")
    await node.pull("d:1", 30)
    assert node.shelf.removed == ["b:1"]


async def test_what_somebody_else_pulled_stays_whatever_it_takes() -> None:
    node = await desk(theirs=10_000)
    await node.pull("a:1", 60)
    await node.pull("b:1", 60)
    assert node.shelf.removed == ["a:1"]
    assert node.keeping.reported() == {"theirs:1", "b:1"}


async def test_what_is_in_use_stays_and_goes_when_it_is_let_go() -> None:
    node = await desk()
    for name in ("python", "python:latest"):  # spellings of one image
        node.keeping.hold(name)
    await node.pull("python", 80)
    await node.pull("b:1", 80)
    assert node.shelf.removed == []
    node.keeping.release("docker.io/library/python")
    await node.keeping.trim(["b:1"])
    assert node.shelf.removed == []
    node.keeping.release("python")
    node.shelf.sizes["python:latest"] = node.shelf.sizes.pop("python")
    await node.keeping.trim(["b:1"])
    assert node.shelf.removed == ["python:latest"]


async def test_what_anothers_container_uses_stays_and_the_next_goes() -> None:
    node = await desk()
    await node.pull("a:1", 40)
    await node.pull("b:1", 40)
    node.shelf.used = {"a:1"}
    await node.pull("c:1", 40)
    assert node.shelf.removed == ["b:1"]


async def test_an_image_that_is_larger_than_the_budget_stays_while_it_is_wanted() -> None:
    node = await desk()
    await node.pull("a:1", 40)
    await node.pull("huge:1", 400)
    assert node.shelf.removed == ["a:1"]
    await node.pull("b:1", 40)
    assert node.shelf.removed == ["a:1", "huge:1"]


async def test_who_wants_an_image_that_is_being_removed_waits_for_its_end() -> None:
    node = await desk()
    await node.pull("a:1", 40)
    removing = asyncio.create_task(node.keeping.remove_oldest())
    await asyncio.sleep(0)
    node.keeping.hold("a:1")
    await node.keeping.settled("a:1")
    assert await removing
    assert "a:1" not in node.shelf.sizes


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["pull", "use", "hold", "release"])), max_size=40))
def test_whatever_happens_the_rest_is_within_the_budget_or_in_use(steps: list[tuple[str, str]]) -> None:
    """Oracle: sizes of 40 bytes, so two that nobody holds fit, and the third goes."""

    async def play() -> None:
        node = await desk(f=40)
        held: list[str] = []
        for letter, what in steps:
            name = f"{letter}:1"
            if what == "pull" and name not in node.shelf.sizes:
                await node.pull(name, 40)
            elif what == "use" and name in node.shelf.sizes:
                await node.use(name)
            elif what == "hold" and name in node.shelf.sizes:
                node.keeping.hold(name)
                held.append(name)
            elif what == "release" and name in held:
                node.keeping.release(name)
                held.remove(name)
                await node.keeping.trim()
            assert set(held) <= node.shelf.sizes.keys(), "one in use is gone"
            assert "f:1" in node.shelf.sizes, "one that we did not pull is gone"
        await node.keeping.trim()
        free = [name for name in node.shelf.sizes if name not in held and name != "f:1"]
        assert node.keeping.bytes_ours <= 100 or not free

    asyncio.run(play())


async def test_what_was_pulled_is_remembered_by_the_store_for_the_next_life(redis_url: str) -> None:
    shelf = Shelf(theirs=500)
    async with connect(redis_url, name="test") as redis:
        first = ImageBudget(shelf, _ledger(redis), budget_bytes=100, clock=ManualClock(1000.0))
        await first.open()
        for name in ("a:1", "b:1"):
            await first.pulling(name)
            shelf.sizes[name] = 60
        # The manager is killed here: it never saw the end of its pulls.
        del shelf.sizes["b:1"]
        second = ImageBudget(shelf, _ledger(redis), budget_bytes=10, clock=ManualClock(2000.0))
        await second.open()
        assert second.bytes_ours == 60
        await second.trim()
        assert shelf.removed == ["a:1"]
        assert await _ledger(redis).read() == {}
        assert await StoreLedger(redis, "n", "another engine").read() == {}


async def test_a_store_that_is_away_costs_no_work() -> None:
    async with connect("unix:///nowhere/valkey.sock", name="test") as redis:
        keeping = ImageBudget(Shelf(a=1), _ledger(redis))
        await keeping.open()
        await keeping.pulling("b:1")
        assert keeping.reported() == {"a:1"}


def _ledger(redis: Redis) -> StoreLedger:
    return StoreLedger(redis, "n", "engine")


@pytest.mark.parametrize("listed", [{"RepoTags": None, "RepoDigests": None}, {"RepoTags": ["<none>:<none>"]}])
async def test_images_without_a_name_are_passed_over(listed: dict[str, Any]) -> None:
    class Nameless(Shelf):
        async def images(self) -> list[dict[str, Any]]:
            return [listed]

    keeping = ImageBudget(Nameless())
    await keeping.open()
    assert keeping.reported() == frozenset()
