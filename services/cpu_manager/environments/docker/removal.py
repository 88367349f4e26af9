"""Removing containers beside everything else: a few at a time, again where the engine stumbles, all at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from services.cpu_manager.environments.docker.engine import Engine, EngineRefusal
from services.cpu_manager.environments.protocol import RuntimeUnavailable
from shared import log

_log = log.get(__name__)

AT_ONCE: Final = 4
"""More at once make the engine slower at everything."""
ATTEMPTS: Final = 4
_PAUSE_S: Final = 0.5
_CLOSE_S: Final = 60.0


class Removal:
    """What is left behind after its last attempt carries the node's label, and the node's next start finds it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._room = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, container: str, after: Awaitable[Any] | None = None) -> None:
        """Remove a container, by id or name, once `after` is done, however it ends."""
        task = asyncio.create_task(self._remove(container, after), name=f"remove {container[:40]}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait until all are removed; a minute at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)

    async def _remove(self, container: str, after: Awaitable[Any] | None) -> None:
        if after is not None:
            await asyncio.wait({asyncio.ensure_future(after)})
        for attempt in range(ATTEMPTS):
            try:
                async with self._room:
                    await self._engine.remove(container)
            except (EngineRefusal, RuntimeUnavailable) as error:
                _log.warning("container_not_removed", container=container, attempt=attempt + 1, problem=str(error))
                await asyncio.sleep(_PAUSE_S * 2**attempt)
            else:
                return
