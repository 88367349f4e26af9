"""Settings of the CPU manager (`CPU_MANAGER_*`)."""

from __future__ import annotations

import platform
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.settings import ServiceSettings


class CpuManagerSettings(ServiceSettings):
    """One CPU host."""

    model_config = SettingsConfigDict(env_prefix="CPU_MANAGER_", frozen=True, use_attribute_docstrings=True)

    node: str = Field(default_factory=lambda: platform.node().split(".")[0] or "node", pattern=r"^[A-Za-z0-9_-]+$")
    """Name of this node; unique in the mesh."""
    node_class: str = "default"
    """Pools are (resource, node class): nodes of one class are interchangeable."""
    cores: int = 0
    """Cores to offer; 0 offers every core this process may run on."""
    slots: int = Field(1024, gt=0)
    """Actions that need no core (sleeping, waiting on others) at once."""
    heartbeat_s: float = Field(2.0, gt=0)
    """How often the node says it lives; the leader takes it for dead after five."""
    rung: Literal["auto", "cgroup-v2", "cgroup-v1", "namespaces", "landlock"] = "auto"
    """Sandbox rung (docs/sandbox.md); auto takes the strongest this machine offers."""
    output_bytes: int = Field(1 << 20, gt=0)
    """Largest JSON of one result; beyond it, texts are cut and flagged."""
    guard_s: float = Field(10.0, gt=0)
    """An attempt that has not ended so long after its limits is our failure: it is killed and counts as lost."""
