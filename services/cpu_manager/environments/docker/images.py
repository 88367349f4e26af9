"""Images on this node: each is fetched once however many ask, a few at a time, and again when the registry stumbles."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec

from services.cpu_manager.environments.docker.engine import EngineRefusal
from services.cpu_manager.environments.protocol import BadEnvironment, RuntimeUnavailable
from shared import log

_log = log.get(__name__)

PULLS_AT_ONCE: Final = 2
"""Each already fetches three layers at a time."""
ATTEMPTS: Final = 5
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 8.0
PULL_S: Final = 1800.0
"""An image of 10 GB over 100 Mbit/s takes 800 s."""

_NEVER: Final = (
    "not found", "manifest unknown", "does not exist", "access denied", "access to the resource is denied",
    "unauthorized", "no matching manifest", "invalid reference", "unsupported", "repository name",
)  # fmt: skip
"""Words of engines and registries for what another attempt would not change."""


class Image(msgspec.Struct, frozen=True):
    """What of an image matters to its containers."""

    id: str
    platform: str
    """`linux/amd64`."""
    workdir: str
    """Empty: `/`."""


class Source(Protocol):
    """Where images come from: the engine, which has some and can fetch others."""

    async def image(self, name: str) -> dict[str, Any] | None: ...
    async def pull(self, name: str, timeout_s: float) -> None: ...


class Images:
    """The images of one engine. Closed by `close`, which gives up what is being fetched."""

    def __init__(
        self,
        source: Source,
        *,
        pulls_at_once: int = PULLS_AT_ONCE,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._source = source
        self._room = asyncio.Semaphore(pulls_at_once)
        self._pause = pause
        self._rng = rng or random.Random()
        self._flights: dict[str, asyncio.Task[Image]] = {}

    async def get(self, name: str) -> Image:
        """The image, fetched where it is missing. Whoever asks while that goes on waits for the same fetch.

        Cancelling ends the wait, not the fetch: others may have come for it, and the next trajectory will.

        Raises:
            BadEnvironment: there is no such image.
            RuntimeUnavailable: the engine or the registry failed `ATTEMPTS` times.
        """
        flight = self._flights.get(name)
        if flight is None:
            flight = self._flights[name] = asyncio.create_task(self._fetched(name), name=f"image {name}")
            flight.add_done_callback(lambda task: self._landed(name, task))
        return await asyncio.shield(flight)

    async def close(self) -> None:
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        if flights:
            await asyncio.wait(flights, timeout=5.0)

    def _landed(self, name: str, flight: asyncio.Task[Image]) -> None:
        self._flights.pop(name, None)
        if not flight.cancelled():
            flight.exception()  # looked at here: everybody who waited may have gone

    async def _fetched(self, name: str) -> Image:
        for attempt in range(ATTEMPTS):
            try:
                return await self._found_or_pulled(name)
            except (EngineRefusal, RuntimeUnavailable) as error:
                if isinstance(error, EngineRefusal) and _for_good(error):
                    raise BadEnvironment(f"image {name!r} cannot be had: {error.message}") from error
                problem = error
            _log.warning("image_pull_failed", image=name, attempt=attempt + 1, problem=str(problem))
            if attempt + 1 < ATTEMPTS:
                await self._pause(self._jittered(attempt))
        raise RuntimeUnavailable(f"image {name!r} could not be fetched in {ATTEMPTS} attempts: {problem}") from problem

    async def _found_or_pulled(self, name: str) -> Image:
        found = await self._source.image(name)
        if found is None:
            async with self._room:
                await self._source.pull(name, PULL_S)
            found = await self._source.image(name)
        if found is None:
            raise RuntimeUnavailable("the pull broke off")
        platform = f"{found.get('Os', 'linux')}/{found.get('Architecture', '')}"
        return Image(found["Id"], platform, (found.get("Config") or {}).get("WorkingDir") or "")

    def _jittered(self, attempt: int) -> float:
        """Seconds: half of the pause is chance, so that the nodes of a mesh do not ask a registry in step."""
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**attempt)
        return pause * (0.5 + 0.5 * self._rng.random())


def _for_good(refusal: EngineRefusal) -> bool:
    """Would asking again get the same answer? Rate limits and a registry out of reach are worth another attempt."""
    said = refusal.message.lower()
    if "toomanyrequests" in said or "dial tcp" in said or "timeout" in said:
        return False
    return refusal.status in {400, 404} or any(words in said for words in _NEVER)
