"""Stop of a node: its steps are cancelled, and the engines that were started here are stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from services.gpu_manager.backends.protocol import Backend, EngineError
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)


async def stop_engines(tasks: Collection[asyncio.Task[None]], backends: Iterable[Backend], within_s: Seconds) -> None:
    """Cancel the tasks, then stop the engines that are ours. Ends after `within_s`, whatever they do."""
    try:
        async with asyncio.timeout(within_s):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            ours = [backend for backend in backends if "cold" in backend.flags.levels]
            await asyncio.gather(*map(_stop_quietly, ours))
    except TimeoutError:
        _log.warning("engines_not_stopped", within_s=within_s)


async def _stop_quietly(backend: Backend) -> None:
    try:
        await backend.stop()
    except EngineError as error:
        _log.warning("engine_not_stopped", reason=error.reason)
