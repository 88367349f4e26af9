"""What the mesh answers. Fields that this release does not know are ignored. Times are Unix seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from treadle.client.requests import Task

Ending = Literal[
    "ok",
    "timeout",
    "cancelled",
    "expired",
    "refused",
    "sandbox-lost",
    "node-lost",
    "unknown-outcome",
    "environment-lost",
]
"""How an action was answered. Only `ok` and `timeout` are verdicts."""


class TaskView(Task, frozen=True, kw_only=True):
    """A task as the mesh has it."""

    name: str
    tenant: str
    version: int
    """Counts changes. Open batches keep the version they were opened with."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How a quantity is distributed, seconds."""

    mean: float
    p50: float
    p99: float
    max: float


class StageProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a batch so far."""

    name: str
    finished: int
    queue_s: Spread | None
    execution_s: Spread | None


class FailureKind(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of a batch that are masked and ended alike."""

    ended: str
    count: int
    share: float
    reason: str
    """Of the newest of them."""


class EnvironmentProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Actions in trajectories that name the batch."""

    answered: int
    masked: int
    masked_share: float
    failures: list[FailureKind]


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch at this moment."""

    id: str
    task: str
    tenant: str
    state: str
    """open, sealed (waits for its last answers), complete, cancelled, abandoned."""
    size: int | None
    """Requests it has when it is complete."""
    submitted: int
    answered: int
    stuck: int = 0
    """Waiting requests that no present node can take."""
    masked: int = 0
    """Answers that are no statement about their sample."""
    masked_share: float = 0.0
    failures: list[FailureKind] = []
    """The masked ones by how they ended, most first."""
    environments: EnvironmentProgress | None = None
    opened_at: float
    first_arrival_at: float | None
    ended_at: float | None
    expected_completion_at: float | None
    """When it could be complete with endless resources."""
    extra_delay_s: float | None
    """How much later its last answer came than it could have."""
    overhead_s: Spread | None
    stages: list[StageProgress]


class ProgressReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a progress report."""

    batch: str
    generating: int
    taken: bool
    """False: another report came within the last second; send the next one a second later."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One executing host."""

    name: str
    incarnation: str
    node_class: str
    state: str
    """ready, asking, silent, gone."""
    capacity: dict[str, int]
    owned: dict[str, int]
    used: dict[str, int]
    owned_unit_s: dict[str, float]
    used_unit_s: dict[str, float]
    cold_start_s: dict[str, float] = {}
    kinds: list[str]
    runtimes: list[str] = []
    """Where environments can be made: `local`, `docker`."""
    labels: dict[str, str]
    last_seen_s: float


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes that reported lately."""

    nodes: list[NodeView]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The body of /healthz."""

    status: Literal["ok"]


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """Action completion time, seconds: total = queue + execution + overhead."""

    queue_s: float
    execution_s: float
    overhead_s: float
    total_s: float


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one stage of a request took."""

    name: str
    queue_s: float
    execution_s: float
    node: str
    attempts: int
    units: int


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of an action, and its answer when there is one."""

    id: str
    state: Literal["queued", "granted", "finished"]
    request_id: str | None = None
    task: str | None = None
    batch: str | None = None
    trajectory: str | None = None
    index: int | None = None
    """Place in the batch, by acceptance."""
    arrived_at: float = 0.0
    ended: Ending | None = None
    mask: bool = False
    """True: a failure of the mesh or a cancellation. Leave the sample out instead of scoring it."""
    passed: bool | None = None
    score: float | None = None
    """The reward; None where there is no verdict."""
    reason: str = ""
    output: Any = None
    """What the kind reports: verdicts of tests, name of the exception, last lines of stdout ..."""
    act: Act | None = None
    stages: list[StageReport] = []
    """Those that have a verdict."""
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    evidence: Literal["separate", "in-process"] | None = None
    """Where the verdict was formed: outside the interpreter that ran the sample, or inside it."""


class Result(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """An answer and its place in the batch's stream."""

    cursor: str
    """Reading with `after=<cursor>` returns what came later."""


class Rejection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that was not accepted."""

    line: int
    """Its place among those submitted, from 1."""
    request_id: str | None = None
    problem: Mapping[str, Any]
    """RFC 9457: type, title, status, detail."""


class BulkReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """Receipt of a submission. Accepted requests stay accepted."""

    accepted: int
    repeated: int
    """Accepted before, with the same body."""
    rejected: list[Rejection]


class TrajectoryView(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory at this moment."""

    id: str
    state: Literal["open", "closed", "expired", "lost"]
    reason: str
    tenant: str
    task: str | None
    batch: str | None = None
    group: str
    request_id: str | None
    node_class: str
    node: str | None
    """Node of its environment; None before its first action."""
    environment: dict[str, Any]
    """All of it, defaults among them."""
    opened_at: float
    active_at: float
    ended_at: float | None
