"""Budget for the images that this manager pulled: the least recently used are removed first.

Laws:
  - only images that this node pulled are removed; a ledger in the mesh's store keeps them across restarts;
  - no image that an environment here uses is removed, and the engine refuses to remove one that any container uses;
  - an image is recorded before its pull, so a manager that is killed during a pull leaves no image without an owner.

An image counts with the size that the engine reports. Layers shared by images count in each of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.cpu_manager.environments.docker.engine import EngineRefusal
from services.cpu_manager.environments.protocol import RuntimeUnavailable
from shared.api.images import familiar
from shared.bus.images import PulledImages
from shared.policy.resources.residency import MOST_PRESENT
from shared.runtime import log
from shared.runtime.clock import SYSTEM_CLOCK, Clock

_log = log.get(__name__)

NOTED_S: Final = 60.0
"""Shortest time between two recorded uses of an image, in seconds."""
_NONE: Final = "<none>"


class ImageLedger(Protocol):
    """Images that this node pulled, with the Unix time of their last use. Never raises: a lost note costs only disk."""

    async def read(self) -> dict[str, float]: ...
    async def note(self, image: str, used_at: float) -> None: ...
    async def drop(self, image: str) -> None: ...


class NoImageLedger:
    """A ledger without storage: it lasts as long as its process."""

    async def read(self) -> dict[str, float]:
        return {}

    async def note(self, image: str, used_at: float) -> None: ...

    async def drop(self, image: str) -> None: ...


class StoredImageLedger:
    """A ledger in the mesh's store: a hash per engine and node, image -> time of its last use.

    The key contains the engine's id, so a node that moves to another host owns nothing there.
    """

    def __init__(self, redis: Redis, node: str, engine: str) -> None:
        self._pulled = PulledImages(redis, engine, node)

    async def read(self) -> dict[str, float]:
        """Return the ledger; empty if the store does not answer. Then no image of an earlier manager is removed."""
        with _unavailable_is_logged("read"):
            return await self._pulled.read()
        return {}

    async def note(self, image: str, used_at: float) -> None:
        with _unavailable_is_logged("note"):
            await self._pulled.note(image, used_at)

    async def drop(self, image: str) -> None:
        with _unavailable_is_logged("drop"):
            await self._pulled.drop(image)


@contextmanager
def _unavailable_is_logged(what: str) -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        _log.warning("image_ledger_unavailable", command=what, problem=str(error))


class ImageStore(Protocol):
    """The engine's methods that are used here."""

    async def images(self) -> list[dict[str, Any]]: ...
    async def remove_image(self, name: str) -> None: ...


class ImageBudget:
    """The images of one engine, by their familiar names (`shared.api.images`)."""

    def __init__(
        self,
        store: ImageStore,
        ledger: ImageLedger | None = None,
        *,
        budget_bytes: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`budget_bytes`: limit for all images that this node pulled; 0: no limit."""
        self._store = store
        self._ledger = ledger or NoImageLedger()
        self._budget_bytes = budget_bytes
        self._clock = clock
        self._here: dict[str, int] = {}
        self._ours: dict[str, float] = {}
        self._noted: dict[str, float] = {}
        self._held: Counter[str] = Counter()
        self._removing: dict[str, asyncio.Event] = {}

    async def open(self) -> None:
        """Read the ledger and the engine's list. Ledger entries whose image is gone are removed.

        Raises:
            EngineRefusal, RuntimeUnavailable: the engine does not list its images.
        """
        self._ours |= await self._ledger.read()
        await self.refresh()
        for name in [name for name in self._ours if name not in self._here]:
            await self._forget(name)

    async def refresh(self) -> None:
        """Read the engine's list again: others pull and remove images as well. Raises as `open`."""
        found = {name: int(one.get("Size") or 0) for one in await self._store.images() for name in _names(one)}
        self._here = found

    def reported(self) -> frozenset[str]:
        """Return the present images, ours and recently used ones first; at most `MOST_PRESENT`."""
        if len(self._here) <= MOST_PRESENT:
            return frozenset(self._here)
        ordered = sorted(self._here, key=lambda name: (-self._ours.get(name, 0.0), name))
        return frozenset(ordered[:MOST_PRESENT])

    @property
    def bytes_ours(self) -> int:
        return sum(self._here.get(name, 0) for name in self._ours)

    def hold(self, image: str) -> None:
        """Count a use: an environment of the image exists or is being created."""
        self._held[familiar(image)] += 1

    def release(self, image: str) -> None:
        """End one use. Call `trim` afterwards."""
        name = familiar(image)
        self._held[name] -= 1
        if self._held[name] <= 0:
            del self._held[name]

    async def wait_for_removal(self, image: str) -> None:
        """Wait until the image is not being removed. It may be present or absent then."""
        gone = self._removing.get(familiar(image))
        if gone is not None:
            await gone.wait()

    async def record_pull(self, image: str) -> None:
        """Record that the image is absent and this node pulls it."""
        name = familiar(image)
        self._here.pop(name, None)
        await self._use(name)

    async def record_present(self, image: str, size: int) -> None:
        """Record that the image is present and used now."""
        name = familiar(image)
        self._here[name] = size
        if name in self._ours:
            await self._use(name)

    async def record_failed_pull(self, image: str) -> None:
        """Record that the pull failed."""
        name = familiar(image)
        if name not in self._here:
            await self._forget(name)

    async def trim(self, spare: Iterable[str] = ()) -> None:
        """Remove unused images of ours, the least recently used first, until the rest is within the budget.

        Args:
            spare: images that are about to be used.
        """
        spared = {familiar(image) for image in spare}
        while self._budget_bytes and self.bytes_ours > self._budget_bytes:
            if not await self.remove_oldest(spared):
                return

    async def remove_oldest(self, spared: Iterable[str] = ()) -> bool:
        """Remove the least recently used image of ours that can be removed. Return False if there is none."""
        kept = {*spared, *self._held, *self._removing}
        for name in sorted(self._ours.keys() - kept, key=lambda name: (self._ours[name], name)):
            if name in self._here and name not in self._held and await self._remove(name):
                return True
        return False

    async def _remove(self, name: str) -> bool:
        gone = self._removing[name] = asyncio.Event()
        try:
            await self._store.remove_image(name)
        except EngineRefusal as refusal:
            if refusal.status != 404:  # another owner's container uses it
                _log.info("image_in_use", image=name, status=refusal.status)
                return False
        except RuntimeUnavailable as error:
            _log.warning("image_not_removed", image=name, problem=str(error))
            return False
        finally:
            del self._removing[name]
            gone.set()
        _log.info("image_removed", image=name, bytes=self._here.pop(name, 0), ours=self.bytes_ours)
        await self._forget(name)
        return True

    async def _use(self, name: str) -> None:
        now = self._clock.unix()
        self._ours[name] = now
        if now - self._noted.get(name, -NOTED_S) >= NOTED_S:
            self._noted[name] = now
            await self._ledger.note(name, now)

    async def _forget(self, name: str) -> None:
        self._noted.pop(name, None)
        if self._ours.pop(name, None) is not None:
            await self._ledger.drop(name)


def _names(listed: dict[str, Any]) -> list[str]:
    """Return the tags and digests under which the engine lists an image."""
    names = [*(listed.get("RepoTags") or ()), *(listed.get("RepoDigests") or ())]
    return [familiar(name) for name in names if _NONE not in name]
