"""Bodies of the hot routes (msgspec): reward requests, actions and their answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from shared.api.elasticity import Duration, Name, Scaling, Units
from shared.policy.model.formulation import EndedAs

RequestId = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Closed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body whose misspelt fields are errors."""


def _no_params() -> msgspec.Raw:
    return msgspec.Raw(b"{}")


class RewardRequest(Closed, frozen=True, kw_only=True):
    """One sample to be rewarded: walks through its task's stages."""

    batch: str | None = None
    """Of an open batch. In bulk it may come from `?batch=`. None: outside a batch, then `task` is needed."""
    task: str | None = None
    request_id: RequestId | None = None
    """Your own id, unique in the batch: sending again with it is harmless and returns the first answer."""
    params: msgspec.Raw = msgspec.field(default_factory=_no_params)
    """Laid over each stage's params; a field goes to every stage whose kind has it."""
    stage_params: dict[str, msgspec.Raw] = {}
    """Stage name -> parameters for that stage alone."""
    priority: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)] = 0.0
    """Lower goes first inside the batch."""


class ActionRequest(Closed, frozen=True, kw_only=True):
    """One action outside any batch."""

    kind: str
    params: msgspec.Raw = msgspec.field(default_factory=_no_params)
    request_id: RequestId | None = None
    units: Units | None = None
    """Resource -> units, or [fewest, most], or of the pool's resource {"any_of": [...]}. Default: one core (sleep,
    noop: one slot)."""
    elasticity: Scaling = {}
    """Units -> efficiency E(m), or a model: {"model": "amdahl", "serial": s} or {"model": "power", "exponent": e}. With
    m units it takes T / (E(m) * m). Empty: it does not scale."""
    duration_s: Duration | None = None
    """T, seconds on one unit. Default: as the history of its kind tells, once there is one."""
    node_class: Name = "default"
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0
    """Execution limit; queueing does not count."""
    budget_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 3600.0
    """Seconds after which nobody needs the answer."""
    priority: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)] = 0.0


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """Action completion time, seconds: total = queue + execution + overhead, however it ended."""

    queue_s: float
    """Waiting for units, in all stages; attempts that were lost and repeated are part of it."""
    execution_s: float
    """In all stages; where the last one was cut short, as far as it is known."""
    overhead_s: float
    """All the rest."""
    total_s: float
    """From its acceptance to its answer."""


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
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
    state: Literal["queued", "granted", "finished"]
    request_id: str | None = None
    task: str | None = None
    batch: str | None = None
    trajectory: str | None = None
    """In whose environment it acted."""
    index: int | None = None
    """Place in the batch, by acceptance."""
    arrived_at: float = 0.0
    """Unix seconds, by the clock of the journal."""
    ended: EndedAs | None = None
    """How it ended. `ok` and `timeout` are verdicts; every other value is no statement about the sample."""
    mask: bool = False
    """True: a failure of ours or a cancellation; leave the sample out instead of scoring it."""
    passed: bool | None = None
    score: float | None = None
    """The reward; absent where there is no verdict."""
    reason: str = ""
    """Why it ended so; while it waits, why it is stuck: no node that is here could ever take it."""
    output: msgspec.Raw | None = None
    """What the kind reports: per-test verdicts, exception name, stdout tail ..."""
    act: Act | None = None
    stages: list[StageReport] = []
    """Those that have a verdict."""
    cpu_s: float = 0.0
    """Of the last stage that has a verdict; what was cut short is not measured."""
    peak_memory_bytes: int = 0
    evidence: Literal["separate", "in-process"] | None = None
    """Where the last stage's verdict was formed. `separate`: outside the interpreter that ran the sample, which holds
    no expected value. `in-process`: in the same one, so a sample that is written against its grader may forge it.
    Absent where the kind forms no verdict."""


class Rejection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a bulk call that was not accepted."""

    line: int
    request_id: str | None = None
    problem: dict[str, Any]


class BulkReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a bulk call. Accepted lines stay accepted, whatever happens to others."""

    accepted: int
    repeated: int
    """Accepted before, with the same body."""
    rejected: list[Rejection]


HOT_TYPES: tuple[type[Any], ...] = (RewardRequest, ActionRequest, Answer, BulkReceipt)
"""What the OpenAPI document takes from here."""
