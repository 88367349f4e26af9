"""The engine's view of a container's past: why it ended, and when it was started."""

from __future__ import annotations

import datetime as dt

from services.cpu_manager.environments.docker.engine import ContainerEngine, EngineRefusal
from services.cpu_manager.environments.protocol import RuntimeUnavailable
from shared.runtime.units import Seconds


async def cause_of_end(engine: ContainerEngine, container: str) -> str:
    """Return why a container ended, for people; empty if it runs or the reason is unknown."""
    try:
        found = await engine.inspect(container)
    except (EngineRefusal, RuntimeUnavailable):
        return ""
    if found is None:
        return "its container was removed"
    state = found["State"]
    if state["Running"]:
        return ""
    if state["OOMKilled"]:
        return "its container ended at its memory limit"
    return f"its container was ended (exit code {state['ExitCode']})"


def age_s(started: str) -> Seconds:
    """Return the seconds since the engine started a container, by this host's clock."""
    return max((dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(started)).total_seconds(), 0.0)
