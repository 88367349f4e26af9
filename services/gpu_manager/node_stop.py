"""Stop of a node: its steps are cancelled, and the engines that were started here are stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from services.gpu_manager.backends.protocol import Backend
from services.gpu_manager.engine_failures import failure_reason
from shared.policy.serving.model import InstanceId
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)


async def stop_engines(
    tasks: Collection[asyncio.Task[None]], backends: Mapping[InstanceId, Backend], within_s: Seconds
) -> None:
    """Cancel the tasks, then stop the engines that are ours. Ends after `within_s`, whatever they do."""
    try:
        async with asyncio.timeout(within_s):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            ours = [(instance, backend) for instance, backend in backends.items() if "cold" in backend.flags.levels]
            await asyncio.gather(*(_stop_quietly(*each) for each in ours))
    except TimeoutError:
        _log.warning("engines_not_stopped", within_s=within_s)


async def _stop_quietly(instance: InstanceId, backend: Backend) -> None:
    try:
        await backend.stop()
    except Exception as error:  # noqa: BLE001
        reason = failure_reason(error, instance, "stop")
        _log.warning("engine_not_stopped", instance=str(instance), reason=reason)
