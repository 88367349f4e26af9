"""Background loops with an owner. If a loop crashes, its service stops, so that a supervisor restarts it.

In a TaskGroup of an ASGI lifespan a failed task does not stop the server: it still answers 200 without its loop.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from shared.runtime import log

_log = log.get(__name__)


def _stop_service() -> None:
    signal.raise_signal(signal.SIGTERM)


class Background:
    """Owns a service's loops: `async with Background() as background: background.start(loop(), name="...")`."""

    def __init__(self, on_crash: Callable[[], None] = _stop_service) -> None:
        self._on_crash = on_crash
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, loop: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run a loop until it ends or the owner's block is left."""
        task = asyncio.create_task(loop, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.critical("background_loop_crashed", loop=task.get_name(), exc_info=error)
            self._on_crash()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel every loop until all have ended. A loop may need several cancels, because a client may swallow one."""
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.5)
