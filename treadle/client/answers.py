"""Answers of the mesh. Generated from docs/openapi.json by scripts/client_types.py: do not edit.

Fields that this release does not know are ignored. Times are Unix seconds.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from treadle.client.requests import EnvironmentSpec, Task


class TaskView(Task, frozen=True, kw_only=True, omit_defaults=True):
    """A task as it stands."""

    name: str
    tenant: str
    version: int
    """Counts changes. Open batches keep the version they were opened with."""


class Spread(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a quantity is distributed, seconds."""

    mean: float
    p50: float
    p99: float
    max: float


class StageProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stage of a batch so far."""

    name: str
    finished: int
    queue_s: Spread | None
    execution_s: Spread | None


class FailureKind(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answers of a batch that are masked and ended alike."""

    ended: str
    """How they ended: refused, sandbox-lost, expired ..."""
    count: int
    share: float
    """Of all answers of the batch so far."""
    reason: str
    """Of the newest of them, its first 500 characters."""


class EnvironmentProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Actions in trajectories that name the batch."""

    answered: int
    masked: int
    masked_share: float
    failures: list[FailureKind]
    """The masked ones by how they ended, most first. `share` is of `answered` here."""


class BatchView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A batch as it stands. Times are Unix seconds."""

    id: str
    task: str
    tenant: str
    state: str
    """open, sealed (waiting for its last answers), complete, cancelled, abandoned."""
    size: int | None
    """Requests it has when it is complete. Open: as it was opened, if that was said; once no more can come (sealed or
    ended), what was submitted. It is complete when `answered` gets there."""
    submitted: int
    answered: int
    opened_at: float
    first_arrival_at: float | None
    ended_at: float | None
    expected_completion_at: float | None
    """T: when it could be complete with endless resources (DistRS, equations 1 and 2): measured once it has ended,
    before that the planner's estimate from history, or first arrival + the stages' timeouts."""
    extra_delay_s: float | None
    """d: how much later the last answer so far came than it could have; of a complete batch, its extra delay."""
    overhead_s: Spread | None
    stages: list[StageProgress]
    environments: EnvironmentProgress | None = None
    """Actions in trajectories opened with this `batch`; null before the first answer. They count in no number above."""
    failures: list[FailureKind] = []
    """The masked ones by how they ended, most first."""
    masked: int = 0
    """Of those answered: how many are no statement about their sample."""
    masked_share: float = 0.0
    """`masked` of `answered`. A wrong configuration makes it 1 from the first answers on."""
    stuck: int = 0
    """Of those that wait: how many no present node could ever take (`/v1/pools` says what they lack)."""


class ProgressReceipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a report."""

    batch: str
    generating: int
    """As it was reported."""
    taken: bool
    """False: there was one within the last second, which counts; send the next one a second later."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One executing host."""

    name: str
    incarnation: str
    node_class: str
    state: str
    """ready, asking (has not told its inventory yet), silent, gone."""
    capacity: dict[str, int]
    owned: dict[str, int]
    used: dict[str, int]
    owned_unit_s: dict[str, float]
    """Unit-seconds held since its start."""
    used_unit_s: dict[str, float]
    kinds: list[str]
    labels: dict[str, str]
    """Sandbox rung, languages with versions ..."""
    last_seen_s: float
    """Seconds since its last sign of life."""
    cold_start_s: dict[str, float] = {}
    """Resource -> seconds from owning a unit to a worker that executes on it, as the node lately measured it."""
    runtimes: list[str] = []
    """Where environments of trajectories can be made: `local`, `docker`."""


class NodeList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All nodes that said hello lately."""

    nodes: list[NodeView]


class Act(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Action completion time, seconds: total = queue + execution + overhead, however it ended."""

    queue_s: float
    """Waiting for units, in all stages; attempts that were lost and repeated are part of it."""
    execution_s: float
    """In all stages; where the last one was cut short, as far as it is known."""
    overhead_s: float
    """All the rest."""
    total_s: float
    """From its acceptance to its answer."""


Ending = Literal[
    "cancelled",
    "environment-lost",
    "expired",
    "node-lost",
    "ok",
    "refused",
    "sandbox-lost",
    "timeout",
    "unknown-outcome",
]
"""How it ended. `ok` and `timeout` are verdicts; every other value is no statement about the sample."""


class StageReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one stage of a request took."""

    name: str
    queue_s: float
    execution_s: float
    node: str
    attempts: int
    units: int


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An action's state, and its answer when there is one."""

    id: str
    state: Literal["finished", "granted", "queued"]
    act: Act | None = None
    arrived_at: float = 0.0
    """Unix seconds, by the clock of the journal."""
    batch: str | None = None
    cpu_s: float = 0.0
    """Of the last stage that has a verdict; what was cut short is not measured."""
    ended: Ending | None = None
    """How it ended. `ok` and `timeout` are verdicts; every other value is no statement about the sample."""
    evidence: Literal["in-process", "separate"] | None = None
    """Where the last stage's verdict was formed. `separate`: outside the interpreter that ran the sample, which holds
    no expected value. `in-process`: in the same one, so a sample that is written against its grader may forge it.
    Absent where the kind forms no verdict."""
    index: int | None = None
    """Place in the batch, by acceptance."""
    mask: bool = False
    """True: a failure of ours or a cancellation; leave the sample out instead of scoring it."""
    output: Any = None
    """What the kind reports: per-test verdicts, exception name, stdout tail ..."""
    passed: bool | None = None
    peak_memory_bytes: int = 0
    reason: str = ""
    """Why it ended so; while it waits, why it is stuck: no node that is here could ever take it."""
    request_id: str | None = None
    score: float | None = None
    """The reward; absent where there is no verdict."""
    stages: list[StageReport] = []
    """Those that have a verdict."""
    task: str | None = None
    trajectory: str | None = None
    """In whose environment it acted."""


class Result(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """One answer, and where to read on: `after=<cursor>`."""

    cursor: str


class Rejection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a bulk call that was not accepted."""

    line: int
    problem: dict[str, Any]
    request_id: str | None = None


class BulkReceipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a bulk call. Accepted lines stay accepted, whatever happens to others."""

    accepted: int
    repeated: int
    """Accepted before, with the same body."""
    rejected: list[Rejection]


class TrajectoryView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trajectory as it stands. Times are Unix seconds."""

    id: str
    state: Literal["closed", "expired", "lost", "open"]
    reason: str
    """Why it ended. While it is open: why its environment could not be made when it was last tried; else empty."""
    tenant: str
    task: str | None
    group: str
    request_id: str | None
    node_class: str
    node: str | None
    """Where its environment stands, or stood; null before its first action."""
    environment: EnvironmentSpec
    opened_at: float
    active_at: float
    """When the last of its actions was submitted."""
    ended_at: float | None
    batch: str | None = None
