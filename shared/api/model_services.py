"""Answers of `/v1/services`: model services of all nodes, and what their engines do."""

from __future__ import annotations

from pydantic import BaseModel

from shared.kinds.formulation import Name


class EngineView(BaseModel):
    """One engine of a model service: on one chunk of one node."""

    node: str
    gpus: list[int]
    """Numbers of its GPUs on the node."""
    state: str
    """`cold` (stopped), `loading`, `resident`, `running`, `draining`, `evicting`, `evicted` (asleep), `restoring`,
    `quarantined`, or `unknown`."""
    since: float
    """Unix seconds at which the state began."""
    why: str
    """Reason for the state."""
    level: str
    """Of an engine that sleeps: `asleep1`, its weights are in host memory; `asleep2`, they are dropped."""
    running: int
    """Actions that use it."""
    waiting: int
    """Actions that wait until it is resident."""
    device_gb: float
    """Memory that it takes of each GPU now, GB."""
    host_gb: float
    """Host memory that it takes while it sleeps, GB."""
    probe_at: float | None
    """Unix seconds of the next probe of a quarantined engine."""
    measured_s: dict[str, float]
    """Measured times of its steps, in seconds: `restore asleep1`, `evict cold` ..."""


class ModelServiceView(BaseModel):
    """A model service. Actions name it: `{"kind": "model.judge", "params": {"service": "judge-a", ...}}`."""

    name: Name
    backend: str
    """Kind of its engines: `process`, `vllm`, `sglang` or `torch`."""
    api: str
    """API of its engines: `openai`, or `treadle` (our server for reward models)."""
    model: str
    degrees: list[int]
    """GPUs that one engine may use."""
    concurrency: int
    """Actions that one engine executes at the same time."""
    awake_gb: float
    """Memory of each GPU that an engine needs, GB."""
    nodes: list[str]
    """Nodes that declare it."""
    engines: list[EngineView]
    """Engines that run or have run, by node and GPUs."""


class ModelServiceList(BaseModel):
    """All model services, by name."""

    services: list[ModelServiceView]
