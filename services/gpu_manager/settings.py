"""Settings of the GPU manager (`GPU_MANAGER_*`)."""

from __future__ import annotations

import platform
from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.runtime.settings import ServiceSettings


class GpuManagerSettings(ServiceSettings):
    """One node with GPUs."""

    model_config = SettingsConfigDict(
        env_prefix="GPU_MANAGER_", frozen=True, use_attribute_docstrings=True, env_ignore_empty=True
    )

    node: str = Field(
        default_factory=lambda: f"{platform.node().split('.')[0] or 'node'}-gpus", pattern=r"^[A-Za-z0-9_-]+$"
    )
    """Name of this node; unique in the mesh."""
    node_class: str = "default"
    """Pools are (resource, node class): nodes of one class are interchangeable."""
    services: Path | None = None
    """JSON file of the model services of this node: name -> entry (docs/model-services.md). Empty: none. A wrong entry
    stops only its own service."""
    allow_commands: bool = False
    """Accept whole entries of services over REST. Their commands run on this host with this service's rights, so every
    caller of the proxy can run programs here: for a machine of one's own."""
    state: Path | None = None
    """Folder with the records of running engines, by which the next process adopts them after a crash. Empty: below
    `run/` of TREADLE_HOME, else in /tmp. Leave it empty under `treadle up`: after a crash of the manager the supervisor
    ends engines without a record in its home."""
    lease_s: float = Field(120.0, ge=1)
    """Seconds for which engines go on without a manager. Then they end by themselves."""
    devices: str = ""
    """GPUs of a machine without NVML: `[{"memory_gb": 24}, ...]`. The memory budget of such a GPU is enforced on the
    processes of its engines. Ignored where NVML finds GPUs."""
    host_memory_gb: float = Field(0.0, ge=0)
    """Host memory for sleeping engines, GB. 0: half of the machine's memory."""
    max_wait_s: float = Field(30.0, gt=0)
    """Seconds after which a waiting action evicts an engine that would otherwise stay."""
    publish_addresses: bool = False
    """Show the address of each resident engine at `GET /v1/services`, for callers on this host that call it without the
    mesh. Engines of vLLM with its development mode have routes that execute code."""
    hung_after_s: float = Field(30.0, gt=0)
    """Seconds for which an engine may answer none of its actions. Then its state is read beside them."""
    heartbeat_s: float = Field(2.0, gt=0)
    """Seconds between heartbeats. By default the leader considers a node lost after five missed ones."""
    cuda_library: str = "libcuda.so.1"
    """CUDA's driver, for `cuda.kernel`: a name that the loader finds, or a path."""
    output_bytes: int = Field(4 << 20, gt=0)
    """Largest JSON of one result. A longer completion is cut and flagged; longer lists of numbers have failed."""
    on_release: str = Field("", repr=False)
    """Hook that is called when GPUs are given away, after they were drained: a URL (POST), or a JSON list of a command,
    `["/usr/local/bin/release-gpus"]`. It must be idempotent. Set both hooks, or none: then all GPUs are held."""
    on_acquire: str = Field("", repr=False)
    """Hook that is called before given GPUs are used again. It has succeeded if nothing else uses them any more."""
    hook_s: float = Field(60.0, gt=0)
    """Seconds after which a call of a hook has failed, and its processes are killed. It is called again later."""
    release_after_s: float = Field(10.0, ge=0)
    """Seconds for which GPUs above this node's share are kept before they are drained and given away."""
    engine_key: str = Field("", repr=False)
    """Key of the engines' API, sent as `Authorization: Bearer`. Empty: none."""
