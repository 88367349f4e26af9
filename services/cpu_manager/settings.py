"""Settings of the CPU manager (`CPU_MANAGER_*`)."""

from __future__ import annotations

import platform
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.runtime.settings import ServiceSettings

NO_ENGINE = "none"


class CpuManagerSettings(ServiceSettings):
    """One CPU host."""

    model_config = SettingsConfigDict(env_prefix="CPU_MANAGER_", frozen=True, use_attribute_docstrings=True)

    node: str = Field(default_factory=lambda: platform.node().split(".")[0] or "node", pattern=r"^[A-Za-z0-9_-]+$")
    """Name of this node; unique in the mesh."""
    node_class: str = "default"
    """Pools are (resource, node class): nodes of one class are interchangeable."""
    cores: int = 0
    """Cores to offer; 0 offers every core this process may run on."""
    topology: str = ""
    """Which cores share a NUMA node and a physical core, where the kernel shall not be asked: NUMA nodes parted by `/`,
    physical cores by `,`, hardware threads of one by `+`; `0-3/4-7`, or with two threads a core `0+2,1+3/4+6,5+7`."""
    memory_mb: int = Field(0, ge=0)
    """Megabytes for environments; 0 takes all this process may use, less a reserve (`memory.py`)."""
    engine: str = ""
    """Container engine that makes environments of images: its address; empty takes `DOCKER_HOST`, else the usual
    socket; `none` makes none."""
    engine_retry_s: float = Field(10.0, gt=0)
    """How often an engine that did not answer when the node started is asked again; the node offers it when it does."""
    starts: int = Field(0, ge=0)
    """Environments that are created at the same time, set-up lines included; 0: half of the cores, at least one. The
    other cores stay for existing environments."""
    image_budget_mb: int = Field(0, ge=0)
    """Megabytes of disk for images that this node pulled; beyond it the node removes unused ones, the least recently
    used first. 0: half of the disk that holds the engine's images, or 100 GB if the node cannot see that disk."""
    pulls: int = Field(2, gt=0)
    """Images pulled at the same time. Each already fetches three layers at a time."""
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
