"""Answers of the mesh. Generated from docs/openapi.json by scripts/client_types.py: do not edit.

Fields that this release does not know are ignored. Times are Unix seconds.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from treadle.client.requests import EnvironmentSpec, Task


class TaskView(Task, frozen=True, kw_only=True, omit_defaults=True):
    """A declared task."""

    name: str
    tenant: str
    version: int
    """Number of changes. An open batch keeps the version with which it was opened."""


class Spread(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Distribution of a duration, seconds."""

    mean: float
    p50: float
    p99: float
    max: float


class StageProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Progress of one stage of a batch."""

    name: str
    finished: int
    queue_s: Spread | None
    execution_s: Spread | None


class FailureKind(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Masked answers of a batch with the same end."""

    ended: str
    """Their end: refused, sandbox-lost, expired ..."""
    count: int
    share: float
    """Share of all answers of the batch so far."""
    reason: str
    """Reason of the newest one, its first 500 characters."""


class EnvironmentProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Actions in trajectories that name the batch."""

    answered: int
    masked: int
    masked_share: float
    failures: list[FailureKind]
    """Masked answers by their end, most frequent first. `share` is a share of `answered`."""
    usage: dict[str, float] = {}
    """Sums of the usage of these actions, by name."""


class BatchView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Status of a batch. Times are Unix seconds."""

    id: str
    task: str
    tenant: str
    state: Literal["open", "sealed", "complete", "cancelled", "abandoned"] | str
    """`sealed`: it accepts no more requests and waits for its last answers. `abandoned`: it was idle for too long."""
    size: int | None
    """Number of requests: as it was opened, or null; once sealed or ended, the submitted ones. It is complete when
    `answered` is equal to it."""
    submitted: int
    answered: int
    opened_at: float
    first_arrival_at: float | None
    ended_at: float | None
    expected_completion_at: float | None
    """T: completion with unlimited resources (DistRS, equations 1 and 2). Measured after the end; before it, the
    planner's estimate from history, or first arrival + the stages' timeouts."""
    extra_delay_s: float | None
    """d: delay of the last answer so far behind T; of a complete batch, its extra delay."""
    overhead_s: Spread | None
    stages: list[StageProgress]
    environments: EnvironmentProgress | None = None
    """Actions in trajectories opened with this `batch`; null before the first answer. No other field counts them."""
    failures: list[FailureKind] = []
    """Masked answers by their end, most frequent first."""
    masked: int = 0
    """Answers without a verdict."""
    masked_share: float = 0.0
    """`masked` / `answered`. With a wrong configuration it is 1 from the first answers on."""
    stuck: int = 0
    """Waiting requests that no present node can execute. `lacks` in `/v1/pools` names the missing resources."""
    usage: dict[str, float] = {}
    """Sums of the answers' `usage`, by name."""


class ProgressReceipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Receipt of a progress report."""

    batch: str
    generating: int
    """The reported number."""
    taken: bool
    """False: another report arrived within the last second and counts instead. Send the next one a second later."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One executing host."""

    name: str
    incarnation: str
    node_class: str
    state: Literal["ready", "silent", "gone"] | str
    """`silent`: no heartbeat has arrived for `PROXY_NODE_LOST_S`. `gone`: it has stopped in good order."""
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
    """Seconds since its last message."""
    cold_start_s: dict[str, float] = {}
    """Resource -> seconds from owning a unit to a worker that executes on it, as recently measured by the node."""
    runtimes: list[str] = []
    """Runtimes that can create environments of trajectories: `local`, `docker`."""


class NodeList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All nodes that were seen recently."""

    nodes: list[NodeView]


class Act(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Action completion time, seconds: total = queue + execution + overhead, for every end."""

    queue_s: float
    """Waiting for units, in all stages, including lost attempts that were repeated."""
    execution_s: float
    """Execution in all stages; of a last stage that was stopped, as far as it is known."""
    overhead_s: float
    """Rest of the total; `restore_s`, and time for which an action was parked (`stages`), are part of it."""
    total_s: float
    """Time from acceptance to answer."""
    restore_s: float = 0.0
    """Waiting, after a grant, until the action's model service was resident, as far as it is known."""


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
    "upstream-failed",
]
"""End of the action. `ok` and `timeout` are verdicts; the other values are no statement about the sample."""


class StageReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Durations and units of one stage of a request."""

    name: str
    queue_s: float
    execution_s: float
    node: str
    attempts: int
    units: int
    parked_s: float = 0.0
    """Seconds for which it was parked and waited for something outside. Waiting for units to continue is queueing."""
    restore_s: float = 0.0
    """Seconds for which its attempts waited, after their grants, until its model service was resident."""
    usage: dict[str, float] = {}
    """Usage of all its attempts, by name, as far as it was measured."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of an action, and its answer once it is finished."""

    id: str
    state: Literal["finished", "granted", "parked", "queued"] | str
    """`parked`: a caller has parked it, or its node while its model answers. It holds no cores, or returns them now,
    until it continues."""
    act: Act | None = None
    arrived_at: float = 0.0
    """Unix seconds, the journal's clock."""
    batch: str | None = None
    cpu_s: float = 0.0
    """CPU time of the last stage with a verdict. A stopped execution is not measured."""
    ended: Ending | str | None = None
    """End of the action. `ok` and `timeout` are verdicts; the other values are no statement about the sample."""
    evidence: Literal["in-process", "separate"] | str | None = None
    """Origin of the last stage's verdict. `separate`: outside the interpreter that ran the sample, which has no
    expected value. `in-process`: in the same interpreter, so a sample written to attack its grader may forge it. Absent
    if the kind forms no verdict."""
    index: int | None = None
    """Position in the batch, by acceptance."""
    mask: bool = False
    """True: an infrastructure failure or a cancellation. Leave the sample out instead of scoring it."""
    output: Any = None
    """Report of the kind: verdicts of tests, name of an exception, end of stdout ..."""
    parked_at: float = 0.0
    """Unix seconds of the request to park it, while it is parked."""
    passed: bool | None = None
    peak_memory_bytes: int = 0
    reason: str = ""
    """Reason of the end. While the action waits: why it is stuck, because no present node can execute it. While it is
    parked: what it waits for."""
    request_id: str | None = None
    retry_in_s: float | None = None
    """Seconds, from the answer on, after which its model service is expected to be resident, if its deadline came while
    that was restored. Send the work again then, under another `request_id`. Absent otherwise."""
    score: float | None = None
    """Reward; absent without a verdict."""
    stages: list[StageReport] = []
    """Stages with a verdict."""
    task: str | None = None
    trajectory: str | None = None
    """Trajectory in whose environment it acts. Once it is finished, also one that it was only submitted for."""
    usage: dict[str, float] = {}
    """Name -> amount used in all stages and attempts, as far as it was measured: `cpu_s`, `gpu_s` (seconds), `tokens`,
    `money`, or a name of the kind's own. Not measured: attempts of a lost node, stopped actions in environments."""


class Result(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """One answer and its cursor. Continue with `after=<cursor>`."""

    cursor: str


class Rejection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rejected line of a bulk call."""

    line: int
    problem: dict[str, Any]
    request_id: str | None = None


class BulkReceipt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Receipt of a bulk call. An accepted line is accepted even if others are rejected."""

    accepted: int
    repeated: int
    """Lines that were accepted before, with the same body."""
    rejected: list[Rejection]


class ModelAccess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Access to the model of one trajectory, for an agent."""

    base_url: str
    """OpenAI's base URL. Anthropic's is without `/v1`."""
    api_key: str
    """Key of this address alone. It is refused after the trajectory has ended."""


class TrajectoryView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Status of a trajectory. Times are Unix seconds."""

    id: str
    state: Literal["closed", "expired", "lost", "open"] | str
    reason: str
    """Reason of its end. While it is open: why the last attempt to create its environment failed; else empty."""
    tenant: str
    task: str | None
    group: str
    request_id: str | None
    node_class: str
    node: str | None
    """Node of its environment; null before its first action."""
    environment: EnvironmentSpec
    opened_at: float
    active_at: float
    """Time at which its last action was submitted."""
    ended_at: float | None
    batch: str | None = None
    model: ModelAccess | None = None
    """Access to its model. Only in the answer that opens it, and null if no trajectory router runs."""
    priority: float = 0.0
    """Newest priority; 0 until it is changed."""
    record: Literal["tokens"] | str | None = None
    """What is recorded of its model calls."""


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens that one policy version sampled: positions `start` to `end`, half-open."""

    version: str
    start: int
    end: int


class MaskedCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call of a row whose tokens are not trained there."""

    call: str
    reason: str


class TrainingRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row. Lists have one entry for each token."""

    trajectory: str
    calls: list[str]
    """Calls of the chain, in order."""
    token_ids: list[int]
    loss_mask: list[int]
    """1: sampled by the policy and trained in this row."""
    logprobs: list[float]
    logprobs_of: Literal["", "after-temperature", "processed", "raw"] | str
    """Empty if it is not known, or if calls differ."""
    temperature: float | None
    """None if it is not known, or if calls differ."""
    versions: list[VersionSpan]
    """Policy versions of sampled tokens, where the engine has reported them: positions in the row."""
    prompt_len: int
    """Ids of the first prompt."""
    finish_reason: str
    """Of the last call."""
    masked: list[MaskedCall] = []


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model call of a recorded trajectory, without its ids."""

    serial: int
    """Order of its record in the trajectory."""
    call: str
    """Id of the call."""
    extends: int | None
    """Serial of the call whose prompt and output its prompt extends, token by token. Null: it begins a chain."""
    prompt_tokens: int
    """Ids of its whole prompt; 0: not reported."""
    output_tokens: int
    """Ids of its output; 0: not reported."""
    status: Literal["aborted", "complete", "incomplete", "no-ids"] | str
    """`complete`, or why its tokens are not trained: `aborted` (ended early), `incomplete` (ids or log-probabilities
    are missing), `no-ids` (it is in no row)."""
    reason: str
    """Why it is not complete."""
    logprobs_of: Literal["", "after-temperature", "processed", "raw"] | str
    """What its log-probabilities were taken of: the model alone (`raw`), `after-temperature`, or after the whole
    sampler (`processed`). Empty: there are none."""
    temperature: float | None
    """As requested; null: the engine's default."""
    versions: list[VersionSpan]
    """Policy versions, where the engine reports them: positions in its output."""
    finish_reason: str
    """As the engine reports it."""
    route: str
    """Path of the call."""
    model: str
    """As requested."""
    worker: str
    """Worker that has answered it."""
    created_at: float
    """Time of its beginning, Unix seconds."""
    ended_at: float | None = None
    """Time at which its whole answer had arrived, or the call had ended; null: a record of an older version."""


class TenantView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tenant and its weight."""

    name: str
    weight: float = 1.0
    """1 if none was set."""


class TenantList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tenants whose weight was set, by name."""

    tenants: list[TenantView]


class QuotaRateView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rate and what was taken of it."""

    limit: float
    """Amount per period. 0 gives nothing, so work waits, or is stuck with that reason."""
    taken: float
    """Amount that is missing from the full rate now."""
    free: float
    """Amount that could be taken now."""
    full_at: float | None
    """Unix seconds at which nothing will be missing if nothing more is taken; null: never."""
    burst: float | None = None
    """Most that is given at once after a pause. Default: `limit`. In every window of w seconds the rate gives at most
    burst + limit * w / period_s."""
    period_s: float | None = None
    """Seconds. What was taken is refilled evenly, `limit` in each period. Null: never refilled, as for money."""
    unit: str = ""
    """Name of what is counted, for people. A quota of a former release may have control characters."""


class Upstream(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """External service behind a quota, as its answers to calls of the mesh show it."""

    state: Literal["ok", "slowed", "open", "half-open", "exhausted"] | str
    """`ok`. `slowed`: it has asked for fewer calls. `open`: it fails, and no call is made. `half-open`: it has failed,
    and one call is made to see whether it answers. `exhausted`: its account has no credit; one call is made from time
    to time, and work continues when one succeeds or the quota is set again."""
    most: int | None = None
    """Most calls at once, because of the service's answers; null: they do not limit it."""
    not_before: float | None = None
    """Unix seconds before which no call is made; null: it is not limited."""
    reason: str = ""


class QuotaWaiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Work of one tenant that waits and takes from a quota."""

    actions: int
    """Number of actions."""
    amount: float
    """Sum of the amounts that they need."""


class QuotaView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A quota, and what granted actions have taken of it."""

    name: str
    concurrency: float | None
    held: float
    """Amount that granted actions hold now."""
    actions: int
    """Number of these actions."""
    rates: list[QuotaRateView]
    upstream: Upstream
    weights: dict[str, float]
    """Tenant -> weight."""
    waiting: dict[str, QuotaWaiting]
    """Tenant -> its waiting work, at most a second old; the 64 tenants with the most."""
    waiting_actions: int
    """Number of waiting actions of all tenants."""
    next_free_at: float | None
    """Unix seconds at which the smallest waiting amount, or 1, can be taken; null: never with the present limits. It is
    exact for rates. For concurrency it is when attempts are expected to end."""


class QuotaList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All quotas, by name."""

    quotas: list[QuotaView]


class EntryView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Entry of a model service: names of its variables, and commands only where REST may set them."""

    backend: str
    api: str
    model: str
    degrees: list[int]
    memory_gb: dict[str, float]
    concurrency: int
    priority: int
    min_residency_s: float
    start_s: float
    health: str
    keep_connections: bool
    canary: dict[str, Any]
    env: list[str]
    command: dict[str, list[str]]
    url: dict[str, str]
    first_gpu: dict[str, int]
    load_s: float = 60.0
    memory_gb_by_degree: dict[str, dict[str, float]] = {}


class ServiceProblem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Reason why a node cannot use a declaration."""

    node: str
    why: str


class EngineView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One engine of a model service: on one chunk of one node."""

    node: str
    gpus: list[int]
    state: str
    since: float
    why: str
    level: str
    running: int
    waiting: int
    device_gb: float
    host_gb: float
    probe_at: float | None
    measured_s: dict[str, float]
    address: str
    lease_until: float | None


class ModelServiceView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model service. Actions name it: `{"kind": "model.judge", "params": {"service": "judge-a", ...}}`."""

    name: str
    source: str
    refers_to: str
    entry: EntryView | None
    backend: str
    api: str
    model: str
    degrees: list[int]
    concurrency: int
    awake_gb: float
    nodes: list[str]
    pending: list[str]
    problems: list[ServiceProblem]
    state: str
    why: str
    engines: list[EngineView]


class GpuView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU of a node."""

    node: str
    number: int
    name: str
    memory_gb: float
    ownership: str
    why: str


class ModelServiceList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All model services by name, and the GPUs of all nodes."""

    services: list[ModelServiceView]
    gpus: list[GpuView]


class QuotaLease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A lease that the caller holds."""

    lease: str
    """Its id."""
    fence: int
    """Number that grows with each lease. Renewal and release need it."""
    expires_in_s: float
    """Seconds until it expires, unless it is renewed."""
    expires_at: float
    """The same time, Unix seconds by the mesh's clock."""


class LeaseView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of a lease."""

    lease: str
    state: Literal["expired", "held", "refused", "released", "revoked", "waiting"] | str
    """`revoked`: the mesh has ended it. `refused`: it was not granted."""
    expires_in_s: float | None = None
    """Null: it is not held."""
    fence: int | None = None
    """Null: it was not granted."""
