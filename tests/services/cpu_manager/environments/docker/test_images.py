"""Pulls from a scripted registry: once for all callers, a few at a time, retried after an error."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from services.cpu_manager.environments.docker.engine import EngineRefusal
from services.cpu_manager.environments.docker.image_budget import ImageBudget
from services.cpu_manager.environments.docker.images import (
    ATTEMPTS,
    FIRST_LIMITED_S,
    LONGEST_LIMITED_S,
    Images,
    PullLimits,
)
from services.cpu_manager.environments.protocol import BadEnvironment, Postponed, RuntimeUnavailable


class Registry:
    """A `Source`. `fails` are raised by the next pulls, in order."""

    def __init__(self, *fails: Exception) -> None:
        self.here: set[str] = set()
        self.pulls: Counter[str] = Counter()
        self.fails = list(fails)
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Event()
        self.at_once = self.most_at_once = 0

    async def image(self, name: str) -> dict[str, Any] | None:
        if name not in self.here:
            return None
        return {"Id": f"sha256:{name}", "Os": "linux", "Architecture": "amd64", "Config": {"WorkingDir": "/work"}}

    async def images(self) -> list[dict[str, Any]]:
        return [{"RepoTags": [name], "Size": 1} for name in self.here]

    async def remove_image(self, name: str) -> None:
        self.here.discard(name)

    async def pull(self, name: str, timeout_s: float) -> None:
        self.pulls[name] += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.asked.set()
        try:
            await asyncio.sleep(0)
            await self.open.wait()
            if self.fails:
                raise self.fails.pop(0)
            self.here.add(name)
        finally:
            self.at_once -= 1


class RecordedPauses:
    """Instead of waiting: how long it would have been."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def images(registry: Registry, pauses: RecordedPauses | None = None, pulls_at_once: int = 2) -> Images:
    return Images(
        registry,
        ImageBudget(registry),
        pulls_at_once=pulls_at_once,
        pause=pauses or RecordedPauses(),
        rng=random.Random(0),
    )


async def test_an_image_is_pulled_once_however_many_ask() -> None:
    registry = Registry()
    node = images(registry)
    found = await asyncio.gather(*(node.get("a:1") for _ in range(64)))
    assert {image.workdir for image in found} == {"/work"}
    assert registry.pulls == {"a:1": 1}


async def test_an_image_that_is_here_is_not_pulled() -> None:
    registry = Registry()
    registry.here.add("a:1")
    assert (await images(registry).get("a:1")).platform == "linux/amd64"
    assert not registry.pulls


async def test_pulls_at_once_are_bounded() -> None:
    registry = Registry()
    node = images(registry, pulls_at_once=2)
    await asyncio.gather(*(node.get(f"a:{n}") for n in range(8)))
    assert (registry.most_at_once, registry.pulls.total()) == (2, 8)


@pytest.mark.parametrize(
    "error",
    [
        EngineRefusal(500, "Get https://registry/v2/: dial tcp: i/o timeout"),
        RuntimeUnavailable("the container engine did not pull a:1 within 1800 s"),
    ],
    ids=["registry out of reach", "engine silent"],
)
async def test_pulls_are_retried_with_growing_pauses_after_registry_errors(error: Exception) -> None:
    registry, pauses = Registry(error, error, error), RecordedPauses()
    await images(registry, pauses).get("a:1")
    assert registry.pulls["a:1"] == 4
    assert len(pauses.seconds) == 3
    # Half of each pause is chance: [0.25, 0.5), [0.5, 1), [1, 2).
    assert all(0.25 * 2**n <= pause < 0.5 * 2**n for n, pause in enumerate(pauses.seconds))


async def test_a_pull_that_broke_off_is_begun_again() -> None:
    """The engine's stream ends without an error, and there is no image."""

    class InterruptedRegistry(Registry):
        async def pull(self, name: str, timeout_s: float) -> None:
            await super().pull(name, timeout_s)
            if self.pulls[name] == 1:
                self.here.clear()

    registry = InterruptedRegistry()
    await images(registry).get("a:1")
    assert registry.pulls["a:1"] == 2


async def test_a_registry_that_continues_to_fail_is_our_failure() -> None:
    registry = Registry(*[EngineRefusal(500, "dial tcp: connection refused")] * ATTEMPTS)
    with pytest.raises(RuntimeUnavailable, match="the registry does not answer"):
        await images(registry).get("a:1")
    assert registry.pulls["a:1"] == ATTEMPTS


@pytest.mark.parametrize(
    "refusal",
    [
        EngineRefusal(404, "manifest for a:1 not found: manifest unknown"),
        EngineRefusal(404, "pull access denied for a, repository does not exist or may require 'docker login'"),
        EngineRefusal(0, "no matching manifest for linux/amd64 in the manifest list entries"),
        EngineRefusal(400, "invalid reference format"),
    ],
)
async def test_a_missing_image_is_reported_at_once(refusal: EngineRefusal) -> None:
    registry, pauses = Registry(refusal), RecordedPauses()
    with pytest.raises(BadEnvironment, match="'a:1'"):
        await images(registry, pauses).get("a:1")
    assert (registry.pulls["a:1"], pauses.seconds) == (1, [])


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "manifest unknown: {secret}"),
        (400, "invalid reference {secret}"),
        (0, "unauthorized: <html>{secret}</html>"),
        (500, 'error parsing HTTP 200 response body: invalid character: "{secret}"'),
        (500, "Get http://10.0.0.7:5000/v2/: dial tcp: {secret}"),
    ],
)
async def test_messages_of_a_registry_are_not_forwarded(status: int, message: str) -> None:
    """A caller names the registry, so its words could be those of any host of the operator's network."""
    secret = "ami-id-0123"
    registry = Registry(*[EngineRefusal(status, message.format(secret=secret))] * ATTEMPTS)
    with pytest.raises((BadEnvironment, RuntimeUnavailable)) as raised:
        await images(registry).get("a:1")
    assert secret not in str(raised.value)
    assert "a:1" in str(raised.value)


async def test_a_broken_image_is_the_error_of_those_who_asked_for_it_alone() -> None:
    registry = Registry(EngineRefusal(404, "not found"))
    node = images(registry, pulls_at_once=1)
    bad, good = await asyncio.gather(node.get("bad:1"), node.get("good:1"), return_exceptions=True)
    assert isinstance(bad, BadEnvironment)
    assert not isinstance(good, BaseException)


async def test_after_a_failure_the_next_caller_tries_again() -> None:
    registry = Registry(EngineRefusal(404, "not found"))
    node = images(registry)
    with pytest.raises(BadEnvironment):
        await node.get("a:1")
    assert (await node.get("a:1")).id == "sha256:a:1"


async def test_a_cancelled_waiter_does_not_end_the_pull_of_others() -> None:
    registry = Registry()
    registry.open.clear()
    node = images(registry)
    leaving, staying = asyncio.create_task(node.get("a:1")), asyncio.create_task(node.get("a:1"))
    await registry.asked.wait()
    leaving.cancel()
    await asyncio.wait({leaving})
    registry.open.set()
    assert (await staying).id == "sha256:a:1"
    assert registry.pulls["a:1"] == 1


async def test_closing_gives_up_what_is_being_pulled() -> None:
    registry = Registry()
    registry.open.clear()
    node = images(registry)
    waiting = asyncio.create_task(node.get("a:1"))
    await registry.asked.wait()
    await node.close()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert registry.at_once == 0


LIMITED = EngineRefusal(0, "toomanyrequests: You have reached your pull rate limit.")


async def test_a_registry_that_limits_pulls_gets_a_pause_and_no_pull_fails() -> None:
    registry = Registry(LIMITED)
    node = images(registry)
    with pytest.raises(Postponed, match=r"docker\.io limits pulls; image 'a:1' is asked for again in [45] s") as first:
        await node.get("a:1")
    assert 3.75 <= first.value.retry_in_s <= 5.0
    for name in ("a:1", "b:1"):
        with pytest.raises(Postponed):
            await node.get(name)
    assert registry.pulls == {"a:1": 1}, "it is not asked again before"
    assert (await node.get("other.example/c:1")).id == "sha256:other.example/c:1", "another registry is asked"
    registry.here.add("b:1")
    assert (await node.get("b:1")).id == "sha256:b:1", "a present image needs no registry"


async def test_each_refusal_of_a_limited_registry_doubles_the_pause_up_to_a_bound() -> None:
    limits = PullLimits(random.Random(0))
    pauses = [limits.limit("a:1").retry_in_s for _ in range(9)]
    for n, pause in enumerate(pauses):
        most = min(LONGEST_LIMITED_S, FIRST_LIMITED_S * 2**n)
        assert 0.75 * most <= pause <= most
    limits.reset("b:1")
    limits.check("a:1")
    assert limits.limit("a:1").retry_in_s <= FIRST_LIMITED_S


async def test_on_a_full_disk_an_image_of_ours_is_removed_and_the_pull_is_repeated() -> None:
    registry = Registry()
    node = images(registry)
    await node.get("old:1")
    registry.fails = [EngineRefusal(0, "failed to register layer: write /x: no space left on device")]
    await node.get("new:1")
    assert registry.here == {"new:1"}
