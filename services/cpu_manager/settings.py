"""Settings of the CPU manager (`CPU_MANAGER_*`)."""

from __future__ import annotations

import platform
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode, SettingsConfigDict

from services.cpu_manager.sandbox.toolchain import visible
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
    """Cores that share a NUMA node or a physical core, instead of what the kernel reports: NUMA nodes separated by `/`,
    physical cores by `,`, hardware threads of one by `+`; `0-3/4-7`, or with two threads a core `0+2,1+3/4+6,5+7`."""
    memory_mb: int = Field(0, ge=0)
    """Megabytes for environments; 0: all that this process may use, less a reserve (`memory.py`)."""
    engine: str = ""
    """Address of the container engine that creates environments from images. Empty: `DOCKER_HOST`, else the usual
    socket. `none`: no engine."""
    engine_retry_s: float = Field(10.0, gt=0)
    """Seconds between attempts to reach an engine that did not answer at the node's start. The node offers images from
    the first answer on."""
    starts: int = Field(0, ge=0)
    """Environments that are created at the same time, set-up lines included; 0: half of the cores, at least one. The
    other cores stay for existing environments."""
    image_budget_mb: int = Field(0, ge=0)
    """Megabytes of disk for images that this node pulled; beyond it the node removes unused ones, the least recently
    used first. 0: half of the disk that holds the engine's images, or 100 GB if the node cannot see that disk."""
    pulls: int = Field(2, gt=0)
    """Images pulled at the same time. Each already fetches three layers at a time."""
    slots: int = Field(1024, gt=0)
    """Actions without cores (they sleep or wait for others) that may run at the same time."""
    heartbeat_s: float = Field(2.0, gt=0)
    """Seconds between heartbeats. By default the leader considers a node lost after five missed ones."""
    rung: Literal["auto", "cgroup-v2", "cgroup-v1", "namespaces", "landlock"] = "auto"
    """Sandbox rung (docs/sandbox.md); auto selects the strongest that this machine offers."""
    visible_paths: Annotated[tuple[str, ...], NoDecode, BeforeValidator(visible)] = Field((), validate_default=False)
    """Files and directories of this host that programs in local sandboxes may read and execute beside the toolchain,
    separated by `:`; for example agents. Programs of every tenant see them."""
    model_idle_s: float = Field(0.1, ge=0)
    """Seconds for which an environment that waits for its model is idle before its action is parked: its cores compute
    for others until the answer is there. 0: actions keep their cores."""
    nvcc: str = ""
    """Path of NVIDIA's CUDA compiler, for `cuda.compile`. Empty: nvcc on PATH, else /usr/local/cuda/bin/nvcc. One that
    is outside of /usr must be below a path of `visible_paths`."""
    cuda_arch: str = Field("sm_90", pattern=r"^(sm|compute)_[0-9]{2,3}[af]?$")
    """Target of `cuda.compile` where an action names none: `sm_90` for H100 and H200, `sm_100` for B200. `compute_90`
    makes PTX, which the driver of the GPU compiles."""
    artifact_bytes: int = Field(4 << 20, gt=0, le=64 << 20)
    """Largest artifact that a stage leaves for later stages. It is kept in Valkey until its action is answered."""
    output_bytes: int = Field(1 << 20, gt=0)
    """Largest JSON of one result; beyond it, texts are cut and flagged."""
    guard_s: float = Field(10.0, gt=0)
    """Seconds past its limits after which an attempt that has not ended is our failure: it is killed and lost."""
