"""The page of a node: each instance as people and the leader see it."""

from __future__ import annotations

from dataclasses import dataclass

from shared.policy.serving.instance import EngineInstance
from shared.policy.serving.model import InstanceId, Level, State, Step
from shared.policy.serving.node_state import NodeState


@dataclass(frozen=True, slots=True)
class InstanceView:
    """One instance."""

    instance: InstanceId
    state: State
    since_s: float
    why: str
    step: Step | None
    """Step under way."""
    level: Level | None
    """Sleep level of an engine that sleeps; None for others."""
    running: tuple[str, ...]
    """Admitted holders."""
    waiting: tuple[str, ...]
    """Waiting holders in their order."""
    device_gb: float
    """Device memory that is counted for it on each of its GPUs."""
    host_gb: float
    """Host memory that is counted for it."""
    probe_s: float | None
    """Time of the probe of a quarantined instance."""
    measured_s: dict[str, float]
    """Measured times, as `restore asleep1` -> seconds."""
    ready_s: float | None = None
    """Time at which a load or restore under way is expected to end."""
    yields: bool = False
    """Its load or restore is late, and its GPUs are offered to other services."""


def _ready_s(state: NodeState, one: EngineInstance) -> float | None:
    if one.step not in ("load", "restore") or one.place == "awake":
        return None
    return one.since_s + state.times.restore_s(one.id, one.place)


def view_of(state: NodeState) -> list[InstanceView]:
    """Return all instances by service and chunk. O(instances log instances)."""
    return [
        InstanceView(
            one.id,
            one.state,
            one.since_s,
            one.why,
            one.step,
            None if one.place in ("awake", "cold") else one.place,  # type: ignore[arg-type]
            tuple(one.running),
            tuple(one.waiting),
            one.device_gb,
            one.host_gb,
            one.probe_s if one.quarantine else None,
            state.times.measured(one.id),
            _ready_s(state, one),
            one.yields,
        )
        for _, one in sorted(state.instances.items())
    ]
