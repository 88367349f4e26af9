"""Answers of `/v1/services`: model services of all nodes, and what their engines do."""

from __future__ import annotations

from typing import Any

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
    address: str
    """Base address for calls, while it is resident. Empty: it is not, or its node publishes no addresses
    (`GPU_MANAGER_PUBLISH_ADDRESSES`)."""
    lease_until: float | None
    """Unix seconds until which the address is leased; null without one. Its GPU manager renews the lease with each
    heartbeat. Read it again after that time, and after a call that failed."""


class EntryView(BaseModel):
    """Entry of a model service: names of its variables, and commands only where REST may set them."""

    backend: str
    api: str
    model: str
    degrees: list[int]
    memory_gb: dict[str, float]
    """Memory of each GPU, `awake` and `asleep`, and `host` memory of a sleeping engine, GB; the most of all degrees."""
    concurrency: int
    priority: int
    """Services of a lower number are evicted later."""
    min_residency_s: float
    start_s: float
    load_s: float = 60.0
    """Expected seconds of a load until one was measured."""
    health: str
    keep_connections: bool
    """Connections to its engines are kept between calls."""
    canary: dict[str, Any]
    """Request with a known answer, sent after each restore. Empty: none."""
    env: list[str]
    """Names of the variables of its process."""
    command: dict[str, list[str]]
    """Degree -> command. Empty: it has none, or it is not shown."""
    url: dict[str, str]
    """Degree -> address of an engine that runs already. Empty: it has none, or it is not shown."""
    first_gpu: dict[str, int]
    """Degree -> first GPU of an engine that runs already."""
    memory_gb_by_degree: dict[str, dict[str, float]] = {}
    """Degree -> `memory_gb` of its engines. Empty: it was declared once for all degrees."""


class ServiceProblem(BaseModel):
    """Reason why a node cannot use a declaration."""

    node: str
    why: str


class ModelServiceView(BaseModel):
    """A model service. Actions name it: `{"kind": "model.judge", "params": {"service": "judge-a", ...}}`."""

    name: Name
    source: str
    """`file`: the operator's file of a GPU manager. `rest`: declared or changed by `PUT /v1/services/{service}`."""
    refers_to: str
    """Entry of the file to which its declaration over REST refers; empty: none."""
    entry: EntryView | None
    """Its entry, as its first node uses it; null: no node uses it, and it refers to a file."""
    backend: str
    """Kind of its engines: `process`, `vllm`, `sglang` or `torch`. Empty, as `api` and `model`: as of `entry`."""
    api: str
    """API of its engines: `openai`, or `treadle` (our server for reward models)."""
    model: str
    degrees: list[int]
    """GPUs that one engine may use."""
    concurrency: int
    """Actions that one engine executes at the same time."""
    awake_gb: float
    """Memory of each GPU that an engine needs, GB; the most of all degrees."""
    nodes: list[str]
    """Nodes that use it."""
    pending: list[str]
    """Nodes that have not applied its last change yet. They do at their next heartbeat."""
    problems: list[ServiceProblem]
    """Nodes that cannot use its entry, of their file or of REST. No other service stops."""
    state: str
    """State of its engine that is nearest to the execution of an action. Without an engine: `quarantined` if its entry
    is wrong on every node that has it, else `cold`."""
    why: str
    """Reason for that state."""
    engines: list[EngineView]
    """Engines that run or have run, by node and GPUs."""


class GpuView(BaseModel):
    """One GPU of a node."""

    node: str
    number: int
    name: str
    memory_gb: float
    ownership: str
    """`held` (the mesh uses it), `draining`, `releasing`, `released` (given away), `acquiring`, or `unknown` (a hook
    has failed). Empty: its node has no hooks, so it is always held."""
    why: str
    """Reason for an ownership that is not `held`, or the fault of a GPU on which nothing is granted."""


class ModelServiceList(BaseModel):
    """All model services by name, and the GPUs of all nodes."""

    services: list[ModelServiceView]
    gpus: list[GpuView]
