"""Images on this node. Concurrent requests share one pull, few pulls run at once, and failed pulls are retried.

A registry that limits pulls (`toomanyrequests`) gets increasing pauses. A request for one of its images is postponed in
the meantime (`Postponed`), which does not count as a failure.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec

from services.cpu_manager.environments.docker.engine import EngineRefusal
from services.cpu_manager.environments.docker.image_budget import ImageBudget
from services.cpu_manager.environments.protocol import BadEnvironment, Postponed, RuntimeUnavailable
from shared.api.images import registry_of
from shared.runtime import log

_log = log.get(__name__)

PULLS_AT_ONCE: Final = 2
"""Each pull already fetches three layers at a time."""
ATTEMPTS: Final = 5
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 8.0
FIRST_LIMITED_S: Final = 5.0
LONGEST_LIMITED_S: Final = 300.0
"""Pauses for a registry that limits pulls. Public ones count over an hour or more, and the engine's answer does not
contain that time."""
UNREPORTED_S: Final = 60.0
MOST_UNREPORTED: Final = 1024
"""Failed pulls without a waiting request: how long and how many are kept for the next request."""
PULL_S: Final = 1800.0
"""Time limit of a pull: an image of 10 GB over 100 Mbit/s takes 800 s."""

_NEVER: Final = (
    "not found", "manifest unknown", "does not exist", "access denied", "access to the resource is denied",
    "unauthorized", "no matching manifest", "invalid reference", "unsupported", "repository name",
)  # fmt: skip
"""Texts in errors of engines and registries that another attempt would not change."""
_LIMITED: Final = ("toomanyrequests", "too many requests", "rate limit", "status code 429", "429 too many")
_DISK_FULL: Final = "no space left on device"


_REASONS: Final = (
    (("dial tcp", "timeout", "no such host", "connection refused"), "the registry does not answer"),
    (("no matching manifest",), "it is not made for this node's platform"),
    (("denied", "unauthorized"), "the registry has no such image, or does not show it"),
    (("not found", "manifest unknown", "does not exist"), "there is no such image"),
    (("invalid reference", "repository name"), "its name is not valid"),
)
"""Texts in errors of engines and registries -> the reason for the caller; the first match counts."""


class Image(msgspec.Struct, frozen=True):
    """The data of an image that its containers need."""

    id: str
    platform: str
    """`linux/amd64`."""
    workdir: str
    """Empty: `/`."""


class Source(Protocol):
    """Source of images: the engine, which has some and can pull others."""

    async def image(self, name: str) -> dict[str, Any] | None: ...
    async def pull(self, name: str, timeout_s: float) -> None: ...


class Images:
    """The images of one engine. `close` cancels running pulls."""

    def __init__(
        self,
        source: Source,
        image_budget: ImageBudget,
        *,
        pulls_at_once: int = PULLS_AT_ONCE,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._source = source
        self._image_budget = image_budget
        self._limits = PullLimits(rng or random.Random())
        self._room = asyncio.Semaphore(pulls_at_once)
        self._pause = pause
        self._rng = rng or random.Random()
        self._pulls: dict[str, asyncio.Task[Image]] = {}
        self._waiters: Counter[str] = Counter()
        self._failures: dict[str, tuple[float, Exception]] = {}
        """Image -> the time until which this failure is kept for the next request, and the failure."""

    @property
    def running(self) -> int:
        """Images that are being pulled or wait for their turn."""
        return len(self._pulls)

    async def get(self, name: str) -> Image:
        """Return the image; pull it if it is missing. Concurrent requests wait for the same pull.

        Cancelling ends the wait, not the pull: others may wait for it, and the next trajectory may need it. A failure
        without a waiting request is raised for the next request within a minute.

        Raises:
            BadEnvironment: there is no such image.
            Postponed: its registry limits pulls.
            RuntimeUnavailable: the engine or the registry failed `ATTEMPTS` times.
        """
        pull = self._pulls.get(name)
        if pull is None:
            until, failure = self._failures.pop(name, (0.0, None))
            if failure is not None and until > asyncio.get_running_loop().time():
                raise failure
            pull = self._pulls[name] = asyncio.create_task(self._fetch(name), name=f"image {name}")
            pull.add_done_callback(lambda task: self._on_pull_end(name, task))
        self._waiters[name] += 1
        try:
            return await asyncio.shield(pull)
        finally:
            self._waiters[name] -= 1
            if not self._waiters[name]:
                del self._waiters[name]

    async def close(self) -> None:
        pulls = list(self._pulls.values())
        for pull in pulls:
            pull.cancel()
        if pulls:
            await asyncio.wait(pulls, timeout=5.0)

    def _on_pull_end(self, name: str, pull: asyncio.Task[Image]) -> None:
        self._pulls.pop(name, None)
        failure = pull.exception() if not pull.cancelled() else None
        if isinstance(failure, BadEnvironment | RuntimeUnavailable) and not self._waiters[name]:
            self._failures[name] = asyncio.get_running_loop().time() + UNREPORTED_S, failure
            while len(self._failures) > MOST_UNREPORTED:
                del self._failures[next(iter(self._failures))]

    async def _fetch(self, name: str) -> Image:
        for attempt in range(ATTEMPTS):
            try:
                return await self._find_or_pull(name)
            except (EngineRefusal, RuntimeUnavailable) as error:
                if isinstance(error, Postponed):
                    raise
                if isinstance(error, EngineRefusal) and _contains(error, *_LIMITED):
                    raise self._limits.limit(name) from error
                if isinstance(error, EngineRefusal) and _is_permanent(error):
                    _log.warning("image_rejected", image=name, problem=error.message)
                    raise BadEnvironment(f"image {name!r} cannot be pulled: {_reason(error)}") from error
                problem = error
            _log.warning("image_pull_failed", image=name, attempt=attempt + 1, problem=str(problem))
            if isinstance(problem, EngineRefusal) and _contains(problem, _DISK_FULL):
                await self._image_budget.remove_oldest(self._pulls)
            if attempt + 1 < ATTEMPTS:
                await self._pause(self._jitter(attempt))
        raise RuntimeUnavailable(
            f"image {name!r} could not be pulled in {ATTEMPTS} attempts: {_reason(problem)}"
        ) from problem

    async def _find_or_pull(self, name: str) -> Image:
        await self._image_budget.wait_for_removal(name)
        found = await self._source.image(name)
        if found is None:
            async with self._room:
                found = await self._pull(name)
        platform = f"{found.get('Os', 'linux')}/{found.get('Architecture', '')}"
        await self._image_budget.record_present(name, int(found.get("Size") or 0))
        await self._image_budget.trim(self._pulls)
        return Image(found["Id"], platform, (found.get("Config") or {}).get("WorkingDir") or "")

    async def _pull(self, name: str) -> dict[str, Any]:
        self._limits.check(name)
        await self._image_budget.record_pull(name)
        found = None
        try:
            await self._source.pull(name, PULL_S)
            found = await self._source.image(name)
        finally:
            if found is None:
                await self._image_budget.record_failed_pull(name)
        if found is None:
            raise RuntimeUnavailable("the pull broke off")
        self._limits.reset(name)
        return found

    def _jitter(self, attempt: int) -> float:
        """Return a pause in seconds. Half of it is random, so that the nodes of a mesh do not retry in step."""
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**attempt)
        return pause * (0.5 + 0.5 * self._rng.random())


class PullLimits:
    """Registries that limit pulls, and the time until which none of their images is pulled."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._limited: dict[str, tuple[float, float]] = {}
        """Registry -> (loop time at which its pause ends, length of the pause)."""

    def check(self, image: str) -> None:
        """Raise `Postponed` during the pause of the image's registry."""
        registry = registry_of(image)
        until = self._limited.get(registry, (0.0, 0.0))[0]
        left_s = until - asyncio.get_running_loop().time()
        if left_s > 0:
            raise _postponed(image, registry, left_s)

    def limit(self, image: str) -> Postponed:
        """Start a pause after a refused pull. A quarter of it is random, so that nodes do not retry in step."""
        registry = registry_of(image)
        pause_s = min(LONGEST_LIMITED_S, self._limited.get(registry, (0.0, FIRST_LIMITED_S / 2))[1] * 2)
        left_s = pause_s * (0.75 + 0.25 * self._rng.random())
        self._limited[registry] = asyncio.get_running_loop().time() + left_s, pause_s
        return _postponed(image, registry, left_s)

    def reset(self, image: str) -> None:
        """End the pauses after a successful pull."""
        self._limited.pop(registry_of(image), None)


def _postponed(image: str, registry: str, left_s: float) -> Postponed:
    reason = f"the registry {registry} limits pulls; image {image!r} is asked for again in {left_s:.0f} s"
    return Postponed(reason, left_s)


def _contains(refusal: EngineRefusal, *words: str) -> bool:
    output = refusal.message.lower()
    return any(word in output for word in words)


def _reason(problem: EngineRefusal | RuntimeUnavailable) -> str:
    """Return the failure of a pull as a fixed text.

    A caller chooses the registry, which may be any host of the operator's network, so no text from the registry is
    passed on. The node's log has that text.
    """
    if isinstance(problem, RuntimeUnavailable):
        return "the container engine or the registry did not answer"
    output = problem.message.lower()
    return next((reason for words, reason in _REASONS if any(word in output for word in words)), "the engine refused")


def _is_permanent(refusal: EngineRefusal) -> bool:
    """Return True if another attempt would fail in the same way. An unreachable registry is worth a retry."""
    if _contains(refusal, "dial tcp", "timeout"):
        return False
    return refusal.status in {400, 404} or _contains(refusal, *_NEVER)
