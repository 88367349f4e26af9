"""Liveness of an engine that answers no request: reads its state, which wakes nothing and sends nothing to its model.

An engine that cannot be read may be at work: a server with one thread answers nothing meanwhile. So it hangs only if
its kind answers at work, or if its processes take no CPU time between the readings, as stopped and deadlocked ones do.
An engine that spins looks like one at work. The machine then waits for its holders (`shared.policy.serving.liveness`).
"""

from __future__ import annotations

import asyncio
from typing import Final

from services.gpu_manager.backends.protocol import Backend
from services.gpu_manager.engine_failures import failure_reason
from services.gpu_manager.metrics import LIVENESS
from shared.policy.serving.model import InstanceId, Liveness
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)

READINGS: Final = 3
PAUSE_S: Final[Seconds] = 1.0
IDLE_SHARE: Final = 0.01
"""CPU seconds a second below which processes do nothing. A server that waits for a GPU polls, and takes more."""


async def read_liveness(backend: Backend, pause_s: Seconds = PAUSE_S) -> tuple[Liveness, str]:
    """Return the liveness of an engine that should be resident, and a reason.

    Ends within `READINGS` times the backend's limit of a reading (5 s), and the pauses. Raises nothing.
    """
    loop = asyncio.get_running_loop()
    began_s, cpu_s = loop.time(), (await backend.footprint()).cpu_s
    state = "unknown"
    for number in range(READINGS):
        if number:
            await asyncio.sleep(pause_s)
        state = await backend.residency()
        if state == "resident":
            return "alive", ""
    lasted_s, used_s = loop.time() - began_s, (await backend.footprint()).cpu_s
    reason = f"it answered none of its requests, and its state was {state} in {READINGS} readings of {lasted_s:.1f} s"
    if backend.flags.answers_at_work:
        return "hung", reason
    if cpu_s is not None and used_s is not None and 0.0 <= used_s - cpu_s < IDLE_SHARE * lasted_s:
        return "hung", f"{reason}, and its processes took no CPU time"
    return "silent", reason


async def checked_liveness(instance: InstanceId, backend: Backend) -> tuple[Liveness, str]:
    """Return as `read_liveness`, and count and log what was found. `silent`: the check has failed."""
    found: Liveness = "silent"
    try:
        found, reason = await read_liveness(backend)
    except Exception as error:  # noqa: BLE001
        reason = failure_reason(error, instance, "liveness")
    LIVENESS.labels(found).inc()
    if found != "alive":
        _log.warning("engine_silent", instance=str(instance), found=found, reason=reason)
    return found, reason
