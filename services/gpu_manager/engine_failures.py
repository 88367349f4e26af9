"""Failures of the calls of one engine: each fails its engine alone, unexpected errors included (ADR 0093)."""

from __future__ import annotations

from services.gpu_manager.backends.protocol import Backend, EngineError, Footprint, Residency
from shared.policy.serving.model import InstanceId
from shared.runtime import log

_log = log.get(__name__)


def failure_reason(error: Exception, instance: InstanceId, call: str) -> str:
    """Return the reason of a failed call, for people. Log an unexpected error with its traceback.

    Args:
        error: raised by a backend, or by our code around it.
        instance: the engine.
        call: name of the call, for the log.
    """
    if isinstance(error, EngineError):
        return error.reason
    if isinstance(error, OSError):  # for example no descriptor is left
        return str(error) or type(error).__name__
    _log.error("engine_call_crashed", instance=str(instance), call=call, exc_info=error)
    return f"internal error: {type(error).__name__}"


async def found_residency(instance: InstanceId, backend: Backend) -> Residency:
    """Return the residency of an engine that runs already; `unknown` if its reading fails."""
    try:
        return await backend.residency()
    except Exception as error:  # noqa: BLE001
        _log.warning("engine_not_found", instance=str(instance), reason=failure_reason(error, instance, "find"))
        return "unknown"


async def abort_requests(instance: InstanceId, backend: Backend) -> None:
    """End the running requests of an engine. If that fails, they end by their deadline, or the engine is stopped."""
    try:
        await backend.abort()
    except Exception as error:  # noqa: BLE001
        _log.warning("abort_failed", instance=str(instance), reason=failure_reason(error, instance, "abort"))


async def end_of(instance: InstanceId, backend: Backend) -> str:
    """Wait until the process of an engine has ended, or can no longer be watched. Return how."""
    try:
        return await backend.ended()
    except Exception as error:  # noqa: BLE001
        return failure_reason(error, instance, "watch")


async def measured_footprint(instance: InstanceId, backend: Backend) -> Footprint:
    """Return the measured memory of an engine; unmeasured if the reading fails."""
    try:
        return await backend.footprint()
    except Exception as error:  # noqa: BLE001
        _log.warning("engine_not_measured", instance=str(instance), reason=failure_reason(error, instance, "footprint"))
        return Footprint(None, None)
