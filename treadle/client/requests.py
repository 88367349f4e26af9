"""Bodies of requests. Generated from docs/openapi.json by scripts/client_types.py: do not edit.

A field at its default is not sent, so that the mesh's own default holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

ActionKind = Literal[
    "noop",
    "sleep",
    "code.run",
    "code.asserts",
    "code.stdio",
    "math.verify",
    "answer.match",
    "python.function",
    "cuda.compile",
    "model.judge",
    "model.score",
    "model.logprob",
    "model.embed",
    "cuda.kernel",
    "http",
    "search.retrieve",
]
"""Kind of an action."""
if not TYPE_CHECKING:  # a newer mesh may answer others
    ActionKind = ActionKind | str

Elasticity = Mapping[str, float | str]
"""Elasticity: with m units the work takes T / (E(m) * m). Either units -> efficiency E(m), or a model: `amdahl` with
`serial`, or `power` with `exponent`. Empty: more units do not help."""

QuotaAmount = float | Literal["learned"]
"""An amount, or `learned`: the mesh reserves what earlier actions have used."""
if not TYPE_CHECKING:  # a newer mesh may answer others
    QuotaAmount = float | str

QuotaAmounts = Mapping[str, QuotaAmount]
"""Quota -> amount that an action takes from it."""

AmountRange = Sequence[int]
"""The fewest and the most units."""

AmountSet = Mapping[str, Sequence[int]]
"""Allowed amounts. No other amount is granted."""

Amount = int | AmountRange | AmountSet
"""A fixed amount, a range, or a set of amounts."""

Units = Mapping[str, Amount]
"""Resource -> units of it."""


class StageTemplate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a workflow: the action for each request, and its resources."""

    name: str
    kind: ActionKind
    duration_s: float | None = None
    """T, seconds on one unit. Default: learned from earlier actions of this stage."""
    elasticity: Elasticity = {}
    """Units -> efficiency E(m), or a model of it. With m units the action takes T / (E(m) * m). Empty: more units do
    not help."""
    error_score: float | None = None
    """Score of a request whose sample ends the process of this stage's `python.function` after the call has begun: by
    an exit, a BaseException, a signal or the memory limit. Default: 0. Other kinds score such an end 0."""
    exception_score: float | None = None
    """Score of a request for which this stage's `python.function` raises an ordinary exception. Default: none; the
    request is refused and masked."""
    node_class: str = "default"
    params: Mapping[str, Any] = {}
    """Parameters of all requests. A request's own parameters override them."""
    quotas: QuotaAmounts = {}
    """Quota (`PUT /v1/quotas/{quota}`) -> amount that it takes, together with its units or not at all. "learned": what
    earlier actions of this task have used, as far as known."""
    timeout_s: float = 30.0
    """Execution limit. Queueing does not count."""
    timeout_score: float | None = None
    """Score of a request that reaches this stage's time limit. Default: the task's."""
    units: Units | None = None
    """Resource -> units, [fewest, most], or for the pool's resource {"any_of": [...]}. Default: one core (sleep, noop:
    one slot)."""
    worker_cost: float = 1.0
    """C_j: cost of one worker of this stage, in any unit common to the workflow."""


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One RL training job: its workflow and its tolerated delay."""

    stages: Sequence[StageTemplate]
    """Stages in order. A request ends early at a stage that fails."""
    batch_size: int | None = None
    """Reward requests of one batch; null: a batch ends when it is sealed."""
    budget_s: float = 3600.0
    """Seconds after which the answer of a request is not needed."""
    max_extra_delay_s: float = 2.0
    """D: tolerated extra delay of a batch, seconds, compared with unlimited resources."""
    timeout_score: float = 0.0
    """Score of a request that reaches a stage's time limit, unless the stage has its own."""
    trainer_resources: float = 1.0
    """Rt: resources that wait while the trainer waits, for example its number of GPUs."""


class BatchOpening(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Opens a batch. All fields are optional; the task has defaults."""

    images: Sequence[str] = []
    """Images that trajectories of this rollout will need. Nodes that run images pull them now."""
    key: str | None = None
    """Idempotency key, for example the training step. A repeat with the same key and size returns the same batch."""
    size: int | None = None
    """Number of requests. Default: the task's `batch_size`. If neither is set, the batch ends when it is sealed."""


class ProgressReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trainer's report of a rollout's progress."""

    generating: int
    """Samples whose reward requests are still to be sent; 0: none."""
    lengths: Sequence[float] | None = None
    """Tokens so far of each of these samples, in any order; of some of them if not all are known. They distinguish a
    rollout that is slower than the last one from one that began later."""


class RewardRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Reward request: one sample, which passes through the stages of its task."""

    batch: str | None = None
    """Id of an open batch. `?batch=` is its default in a bulk call. Null: outside a batch; `task` is required then."""
    params: Mapping[str, Any] = {}
    """Parameters that override those of the stages. A field goes to each stage whose kind has it."""
    priority: float = 0.0
    """Requests with a lower value go first in the batch."""
    request_id: str | None = None
    """Your own id, unique in the batch. A repeat with the same id returns the first answer."""
    stage_params: Mapping[str, Mapping[str, Any]] = {}
    """Stage name -> parameters of this stage only."""
    task: str | None = None
    trajectory: str | None = None
    """Your trajectory that is graded: its trace shows the request. No effect on the request; one that is not known (any
    more) is ignored."""


class ActionRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One action outside any batch."""

    kind: ActionKind
    budget_s: float = 3600.0
    """Seconds after which the answer is not needed."""
    duration_s: float | None = None
    """T, seconds on one unit. Default: learned from earlier actions of this kind."""
    elasticity: Elasticity = {}
    """Units -> efficiency E(m), or a model: {"model": "amdahl", "serial": s} or {"model": "power", "exponent": e}. With
    m units the action takes T / (E(m) * m). Empty: more units do not help."""
    node_class: str = "default"
    params: Mapping[str, Any] = {}
    priority: float = 0.0
    """Seconds by which it goes later in the order, negative for earlier."""
    quotas: QuotaAmounts = {}
    """Quota (`PUT /v1/quotas/{quota}`) -> amount that it takes, together with its units or not at all. "learned": what
    earlier actions of the same tenant and kind have used, as far as known."""
    request_id: str | None = None
    timeout_s: float = 60.0
    """Execution limit. Queueing does not count."""
    trajectory: str | None = None
    """Your trajectory that the action belongs to, such as its grading: its trace shows the action. No effect on the
    action, which is executed outside its environment; one that is not known (any more) is ignored."""
    units: Units | None = None
    """Resource -> units, [fewest, most], or for the pool's resource {"any_of": [...]}. Default: one core (sleep, noop:
    one slot)."""


class ParkRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parks a running action in an environment."""

    reason: str = ""
    """What it waits for; for people."""


class EnvironmentSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One environment as its trainer requests it. A node adds nothing to it."""

    disk_mb: int = 1024
    """Bound of the files that it writes."""
    env: Mapping[str, str] = {}
    """Variables of every command. No value has NUL."""
    idle_s: float = 1800.0
    """Seconds after its last action until it ends."""
    image: str = "local"
    """`local`, or an image of a container engine."""
    lifetime_s: float = 21600.0
    """Seconds after its first action until it ends, also while it is used."""
    memory_mb: int = 1024
    """Held on its node until it ends. A process that asks for more is ended."""
    model: bool = False
    """It reaches the model of its trajectory at http://127.0.0.1:14747, without a key. The variables OPENAI_BASE_URL,
    OPENAI_API_BASE, OPENAI_API_KEY, ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY of its commands are set for that. With
    `network` false it reaches nothing else."""
    network: bool = False
    """It may reach the network. A `local` environment never may."""
    pids: int = 256
    """Processes and threads at once."""
    read_only: bool = False
    """The image's files cannot be changed; /tmp and `workdir` can."""
    setup: Sequence[str] = []
    """Bash lines run once, in order, before the first action. One that fails ends the trajectory's first action as
    `refused`, with its output."""
    setup_timeout_s: float = 300.0
    """Limit of its creation, container and set-up lines together. Waiting for its turn and its image does not count."""
    workdir: str = ""
    """Directory in which commands start; empty: the image's own, or the private directory of a local one."""


class TrajectoryRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Opens a trajectory. Its environment is created with its first action."""

    batch: str | msgspec.UnsetType = msgspec.UNSET
    """Batch whose status counts the actions of this trajectory and their failures. Unset is not encoded, so the digest
    of a request without it is the same in every version."""
    environment: EnvironmentSpec = EnvironmentSpec()
    """Environment of its actions."""
    group: str = ""
    """Your own name for trajectories with the same start (GRPO)."""
    node_class: str = "default"
    """Class of the nodes that may have its environment."""
    record: Literal["tokens"] | msgspec.UnsetType = msgspec.UNSET
    """`tokens`: the ids and log-probabilities of its model calls are recorded, for `GET
    /v1/trajectories/{trajectory}/tokens`. A call's answer ends when its record is durable."""
    request_id: str | None = None
    """Your own id. A repeat with the same id and body returns the same trajectory."""
    sampling: Mapping[str, Any] = {}
    """Fields that a call of its model gets where it has none: {"temperature": 1.0, "max_tokens": 2048}. Agents often
    send neither."""
    task: str | None = None
    """RL job of the trajectory, for people."""


class TrajectoryChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changes an open trajectory."""

    priority: float
    """Seconds by which its unanswered and later actions go later in the order of your tenant, negative for earlier. An
    action that runs is not interrupted."""


TrajectoryActionKind = Literal[
    "env.bash", "env.close_session", "env.download", "env.exec", "env.list", "env.read", "env.upload", "env.write"
]
"""Kind of a TrajectoryAction: what it runs."""


class TrajectoryAction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One action in a trajectory's environment. Actions of one trajectory run one at a time, in order of arrival."""

    kind: TrajectoryActionKind
    budget_s: float = 3600.0
    """Seconds after which the answer is not needed."""
    duration_s: float | None = None
    """T, seconds on one unit. Default: learned from earlier actions of this kind."""
    elasticity: Elasticity = {}
    """Units -> efficiency E(m), or a model: {"model": "amdahl", "serial": s} or {"model": "power", "exponent": e}."""
    params: Mapping[str, Any] = {}
    priority: float = 0.0
    """Seconds by which it goes later in the order, negative for earlier. That of its trajectory is added."""
    quotas: QuotaAmounts = {}
    """Quota (`PUT /v1/quotas/{quota}`) -> amount that it takes, together with its units or not at all. "learned": what
    earlier actions of the same tenant and kind have used, as far as known."""
    request_id: str | None = None
    """Your own id, unique in the trajectory. A repeat with the same id returns the first answer."""
    timeout_s: float = 60.0
    """Execution limit. Queueing and the creation of the environment do not count. At the limit the action is ended, and
    the environment continues."""
    units: Units | None = None
    """Resource -> units, [fewest, most], or for cores {"any_of": [...]}. The action holds cores only while it executes.
    More than the fewest are granted if `elasticity` and a duration are known. Default: one core."""


class TenantWeight(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Weight of a tenant."""

    weight: float
    """Share of the mesh while several tenants have waiting work: a tenant of weight 2 gets twice the unit-seconds of a
    tenant of weight 1. From 0.001 to 1000."""


class QuotaRate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limit of the amount that is taken over time."""

    limit: float
    """Amount per period. 0 gives nothing, so work waits, or is stuck with that reason."""
    burst: float | None = None
    """Most that is given at once after a pause. Default: `limit`. In every window of w seconds the rate gives at most
    burst + limit * w / period_s."""
    period_s: float | None = None
    """Seconds. What was taken is refilled evenly, `limit` in each period. Null: never refilled, as for money."""
    unit: str = ""
    """Name of what is counted, for people: `usd`, `tokens`."""


class Quota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of a quota. All of them hold at once, and an action takes the same amount from each."""

    concurrency: float | None = None
    """Most that granted actions hold together, from the grant to the end of the attempt."""
    rates: Sequence[QuotaRate] = []
    """Limits over time, one for each period."""
    weights: Mapping[str, Any] = {}
    """Tenant -> weight. While several tenants wait for the quota, they are granted amounts of it in proportion to their
    weights; a tenant that is not named has 1. Empty: the weights of tenants decide (`PUT /v1/tenants/{tenant}`)."""


class AcquireRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Amounts of quotas to hold, all or none."""

    quotas: QuotaAmounts
    """Quota (`PUT /v1/quotas/{quota}`) -> amount."""
    priority: float = 0.0
    """Seconds by which it goes later in the order, negative for earlier."""
    request_id: str | None = None
    """A repeat with the same id returns the same lease, until a minute after its end."""
    ttl_s: float = 20.0
    """Seconds after which the lease expires, unless it is renewed."""
    wait_s: float = 20.0
    """Seconds within which the lease must be granted. It is refused earlier if rates cannot be refilled in time."""


class LeaseFence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Proof that the caller holds the lease."""

    fence: int
    """As in the answer to the acquire."""


class LeaseSettlement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Release of a lease with the amounts that were really used."""

    fence: int
    """As in the answer to the acquire."""
    used: Mapping[str, float]
    """Quota -> amount. Rates are corrected by the difference; quotas that are not named keep what was taken."""
