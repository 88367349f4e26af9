"""Removal of containers in the background: a few at a time, with retries, complete at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from services.cpu_manager.environments.docker.engine import ContainerEngine, EngineRefusal
from services.cpu_manager.environments.protocol import RuntimeUnavailable
from shared.runtime import log

_log = log.get(__name__)

AT_ONCE: Final = 4
"""Containers removed at the same time. More make the engine slower at everything."""
ATTEMPTS: Final = 4
"""Attempts after the manager has begun to close. Before that, attempts are unlimited."""
_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_CLOSE_S: Final = 60.0


class Removal:
    """Removes containers. One left after its last attempt has the node's label, so the node's next start finds it."""

    def __init__(self, engine: ContainerEngine) -> None:
        self._engine = engine
        self._room = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._given_up = False

    def start(self, container: str, after: Awaitable[Any] | None = None) -> None:
        """Remove a container, by its id, after `after` has ended in any way."""
        self._begin(self._remove(container, lambda: self._engine.remove(container), after))

    def start_labelled(self, label: str, after: Awaitable[Any]) -> None:
        """Do the same with all containers that have this label then."""
        self._begin(self._remove(label, lambda: self._remove_labelled(label), after))

    async def close(self) -> bool:
        """Wait at most a minute until all are removed. Return False if one was not."""
        self._closing.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        return not (self._tasks or self._given_up)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="remove a container")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _remove(
        self, what: str, remove: Callable[[], Awaitable[None]], after: Awaitable[Any] | None = None
    ) -> None:
        if after is not None:
            await asyncio.wait({asyncio.ensure_future(after)})
        failed = failed_closing = 0
        while failed_closing < ATTEMPTS:
            try:
                async with self._room:
                    await remove()
            except (EngineRefusal, RuntimeUnavailable) as error:
                failed += 1
                failed_closing += self._closing.is_set()
                _log.warning("container_not_removed", container=what, attempt=failed, problem=str(error))
                await self._pause(failed_closing or failed)
            else:
                return
        self._given_up = True

    async def _remove_labelled(self, label: str) -> None:
        for container in await self._engine.labelled(label):
            await self._engine.remove(container)

    async def _pause(self, attempt: int) -> None:
        """Wait, longer each time; not for long once the manager closes."""
        pause_s = min(_PAUSE_S * 2 ** (attempt - 1), _LONGEST_PAUSE_S)
        if self._closing.is_set():
            await asyncio.sleep(pause_s)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._closing.wait()
