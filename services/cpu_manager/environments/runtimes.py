"""The runtimes of one node, and the choice of a runtime by image."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from services.cpu_manager.environments.protocol import BadEnvironment, Environment, Runtime
from shared.messages.environments import LOCAL
from shared.runtime import log

_log = log.get(__name__)

DOCKER = "docker"
CLOSING_S = 5.0
"""Longest wait for a runtime's own end, in seconds. Its environments have ended before."""
MOST_PREPARING = 64
"""Images that are prepared at the same time. A hint beyond them is dropped, and the first action waits for its
image."""


class Runtimes:
    """Runtimes of this node. Image `local` has its own runtime; a container engine serves every other image."""

    def __init__(self, runtimes: Iterable[Runtime], missing: Mapping[str, str] | None = None) -> None:
        """`missing`: runtimes that this node does not have, with the reasons."""
        self._runtimes = {runtime.name: runtime for runtime in runtimes}
        self._missing = missing or {}
        self._preparing: dict[str, asyncio.Task[None]] = {}

    def add(self, runtime: Runtime) -> None:
        """Add a runtime that became available later than the others."""
        assert runtime.name not in self._runtimes, f"there are two {runtime.name} runtimes"
        self._runtimes[runtime.name] = runtime

    @property
    def names(self) -> list[str]:
        return sorted(self._runtimes)

    def of(self, image: str) -> Runtime:
        """Return the runtime for this image.

        Raises:
            BadEnvironment: this node has no such runtime.
        """
        runtime = self._runtimes.get(_name(image))
        if runtime is None:
            reason = self._missing.get(_name(image))
            problem = f"this node has no {_name(image)} runtime, which image {image!r} asks for"
            raise BadEnvironment(f"{problem}: {reason}" if reason else problem)
        return runtime

    def prepare(self, image: str) -> None:
        """Prepare this image in the background, because environments of it are expected."""
        runtime = self._runtimes.get(_name(image))
        if runtime is None or image in self._preparing:
            return
        if len(self._preparing) >= MOST_PREPARING:
            _log.warning("image_hint_dropped", image=image, preparing=len(self._preparing))
            return
        self._preparing[image] = task = asyncio.create_task(runtime.prepare(image), name=f"prepare {image}")
        task.add_done_callback(lambda _: self._preparing.pop(image, None))

    def images(self) -> frozenset[str]:
        """Return the images of which environments can be created here without a pull."""
        return frozenset().union(*(runtime.images() for runtime in self._runtimes.values()))

    async def survivors(self) -> list[Environment]:
        """Return environments of earlier managers of this node. Call it once, before any creation."""
        return [environment for runtime in self._runtimes.values() for environment in await runtime.survivors()]

    async def close(self) -> None:
        """Cancel preparations, and close the runtimes."""
        for task in self._preparing.values():
            task.cancel()
        closing = [asyncio.create_task(one.close(), name=f"close {one.name}") for one in self._runtimes.values()]
        if ending := [*self._preparing.values(), *closing]:
            done, left = await asyncio.wait(ending, timeout=CLOSING_S)
            errors = [repr(error) for task in done if not task.cancelled() and (error := task.exception()) is not None]
            if errors or left:
                _log.error("runtimes_not_closed", errors=errors, still_closing=len(left))


def _name(image: str) -> str:
    return LOCAL if image == LOCAL else DOCKER
