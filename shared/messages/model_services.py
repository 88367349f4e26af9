"""Page of a node's model services: what each engine does, for people and for the proxy.

It is no message of a stream: the hash `serving` has the newest page of each node.
"""

from __future__ import annotations

import msgspec


class EngineState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One engine of a model service."""

    service: str
    gpus: list[int]
    state: str
    """`shared.policy.serving.model.State`."""
    since: float
    """Unix seconds."""
    why: str = ""
    level: str = ""
    """Level of an engine that sleeps."""
    running: int = 0
    """Actions that use it."""
    waiting: int = 0
    """Actions that wait until it is resident."""
    device_gb: float = 0.0
    """Memory that it takes of each GPU, GB."""
    host_gb: float = 0.0
    """Host memory that it takes while it sleeps, GB."""
    probe_at: float | None = None
    """Unix seconds of the next probe of a quarantined engine."""
    measured_s: dict[str, float] = {}
    """Measured times of its steps: `restore asleep1` -> seconds."""


class ServiceOffer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model service of a node."""

    backend: str
    api: str
    model: str
    degrees: list[int]
    concurrency: int
    awake_gb: float
    asleep_gb: float = 0.0
    priority: int = 0
    min_residency_s: float = 0.0


class GpuState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU of a node."""

    number: int
    name: str
    memory_gb: float
    measured: bool = False
    """Its memory is measured. False: it is described by a setting."""


class ServingPage(msgspec.Struct, frozen=True, kw_only=True):
    """All model services of a node."""

    node: str
    incarnation: str
    at: float
    """Unix seconds."""
    services: dict[str, ServiceOffer]
    engines: list[EngineState]
    gpus: list[GpuState]
