"""The runtimes of one node, and which of them an image asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from services.cpu_manager.environments.protocol import BadEnvironment, Environment, Runtime
from shared.messages.environments import LOCAL
from shared.runtime import log

_log = log.get(__name__)

DOCKER = "docker"
CLOSING_S = 5.0
"""Patience with a runtime's own end; its environments have ended before."""
MOST_WANTED = 64
"""Images that are being made ready at once; a hint beyond them is dropped, and the first action waits for its image."""


class Runtimes:
    """What makes environments here. `local` is a runtime of its own; every other image is a container engine's."""

    def __init__(self, runtimes: Iterable[Runtime]) -> None:
        self._runtimes = {runtime.name: runtime for runtime in runtimes}
        self._wanted: dict[str, asyncio.Task[None]] = {}

    def add(self, runtime: Runtime) -> None:
        """One that has come later than the others."""
        assert runtime.name not in self._runtimes, f"there are two {runtime.name} runtimes"
        self._runtimes[runtime.name] = runtime

    @property
    def names(self) -> list[str]:
        return sorted(self._runtimes)

    def of(self, image: str) -> Runtime:
        """The runtime that makes environments of this image.

        Raises:
            BadEnvironment: this node has none that does.
        """
        runtime = self._runtimes.get(_name(image))
        if runtime is None:
            raise BadEnvironment(f"this node has no {_name(image)} runtime, which image {image!r} asks for")
        return runtime

    def want(self, image: str) -> None:
        """Environments of this image will be asked for: make it ready, beside everything else."""
        runtime = self._runtimes.get(_name(image))
        if runtime is None or image in self._wanted:
            return
        if len(self._wanted) >= MOST_WANTED:
            _log.warning("image_hint_dropped", image=image, wanted=len(self._wanted))
            return
        self._wanted[image] = task = asyncio.create_task(runtime.prepare(image), name=f"prepare {image}")
        task.add_done_callback(lambda _: self._wanted.pop(image, None))

    def images(self) -> frozenset[str]:
        """What environments can be made of here without a pull."""
        return frozenset().union(*(runtime.images() for runtime in self._runtimes.values()))

    async def survivors(self) -> list[Environment]:
        """What outlived an earlier life of this node's manager. Once, before anything is made."""
        return [environment for runtime in self._runtimes.values() for environment in await runtime.survivors()]

    async def close(self) -> None:
        """Give up what is being made ready, and end what is left."""
        for task in self._wanted.values():
            task.cancel()
        closing = [asyncio.create_task(one.close(), name=f"close {one.name}") for one in self._runtimes.values()]
        if ending := [*self._wanted.values(), *closing]:
            done, left = await asyncio.wait(ending, timeout=CLOSING_S)
            errors = [repr(error) for task in done if not task.cancelled() and (error := task.exception()) is not None]
            if errors or left:
                _log.error("runtimes_left_behind", errors=errors, still_closing=len(left))


def _name(image: str) -> str:
    return LOCAL if image == LOCAL else DOCKER
