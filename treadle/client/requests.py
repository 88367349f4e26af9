"""Bodies of requests. Generated from docs/openapi.json by scripts/client_types.py: do not edit.

A field at its default is not sent, so that the mesh's own default holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

ActionKind = Literal[
    "noop", "sleep", "code.run", "code.asserts", "code.stdio", "math.verify", "answer.match", "python.function"
]
"""Kind of an action: what it runs."""

Elasticity = Mapping[str, float | str]
"""How the work scales: with m units it takes T / (E(m) * m). Either units -> efficiency E(m), or a model: `amdahl` with
`serial`, or `power` with `exponent`. Empty: it does not scale."""

AmountRange = Sequence[int]
"""The fewest and the most units."""

AmountSet = Mapping[str, Sequence[int]]
"""A set of amounts: only these are granted."""

Amount = int | AmountRange | AmountSet
"""A fixed amount, a range, or a set of amounts."""

Units = Mapping[str, Amount]
"""Resource -> units of it."""


class StageTemplate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a workflow: what to run for each request, and what it may use."""

    name: str
    kind: ActionKind
    duration_s: float | None = None
    """T, seconds on one unit. Default: as the history of its kind tells, once there is one."""
    elasticity: Elasticity = {}
    """Units -> efficiency E(m), or a model of it: with m units it takes T / (E(m) * m). Empty: it does not scale."""
    error_score: float | None = None
    """Score of a request whose sample ends this stage's `python.function` after the call has begun: by an exit, a
    BaseException, a signal or the memory limit. Default: 0. Other kinds score such an end 0."""
    exception_score: float | None = None
    """Score of a request for which this stage's `python.function` raises an ordinary exception. Default: none, the
    request is refused and masked."""
    node_class: str = "default"
    params: Mapping[str, Any] = {}
    """Parameters all requests share; a request's own are laid over them."""
    timeout_s: float = 30.0
    """Execution limit. Queueing does not count."""
    timeout_score: float | None = None
    """Score of a request that meets this stage's limit. Default: the task's."""
    units: Units | None = None
    """Resource -> units an action takes, or [fewest, most], or of the pool's resource {"any_of": [...]}. Default: one
    core (sleep, noop: one slot)."""
    worker_cost: float = 1.0
    """C_j: what one worker of this stage costs, in any unit common to the workflow."""


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One RL training job: its workflow and what delay it tolerates."""

    stages: Sequence[StageTemplate]
    """Run in order; a request ends early at a stage that fails."""
    batch_size: int | None = None
    """Reward requests of one batch; None: batches end when they are sealed."""
    budget_s: float = 3600.0
    """Seconds after which nobody needs a request's answer any more."""
    max_extra_delay_s: float = 2.0
    """D: seconds a batch may be complete later than with endless resources."""
    timeout_score: float = 0.0
    """Score of a request that met a stage's time limit, where the stage names none of its own."""
    trainer_resources: float = 1.0
    """Rt: what waits while the trainer waits, e.g. its number of GPUs."""


class BatchOpening(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Opens a batch. All fields are optional: the task knows the rest."""

    images: Sequence[str] = []
    """Images that trajectories of this rollout will ask for: nodes that run images pull them now."""
    key: str | None = None
    """Your own key, e.g. the training step: opening again with it and the same size returns the same batch."""
    size: int | None = None
    """Requests to come; default the task's batch_size; neither: until sealed."""


class ProgressReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a rollout is, as its trainer sees it."""

    generating: int
    """Samples still being generated: those whose reward requests have not been sent yet. 0: all have been."""
    lengths: Sequence[float] | None = None
    """Tokens so far of each of those samples, in any order; of some of them where not all are known. They tell a
    rollout that is slower than the last one from one that is merely younger."""


class RewardRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sample to be rewarded: walks through its task's stages."""

    batch: str | None = None
    """Of an open batch. In bulk it may come from `?batch=`. None: outside a batch, then `task` is needed."""
    params: Mapping[str, Any] = {}
    """Laid over each stage's params; a field goes to every stage whose kind has it."""
    priority: float = 0.0
    """Lower goes first inside the batch."""
    request_id: str | None = None
    """Your own id, unique in the batch: sending again with it is harmless and returns the first answer."""
    stage_params: Mapping[str, Mapping[str, Any]] = {}
    """Stage name -> parameters for that stage alone."""
    task: str | None = None


class ActionRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One action outside any batch."""

    kind: ActionKind
    budget_s: float = 3600.0
    """Seconds after which nobody needs the answer."""
    duration_s: float | None = None
    """T, seconds on one unit. Default: as the history of its kind tells, once there is one."""
    elasticity: Elasticity = {}
    """Units -> efficiency E(m), or a model: {"model": "amdahl", "serial": s} or {"model": "power", "exponent": e}. With
    m units it takes T / (E(m) * m). Empty: it does not scale."""
    node_class: str = "default"
    params: Mapping[str, Any] = {}
    priority: float = 0.0
    request_id: str | None = None
    timeout_s: float = 60.0
    """Execution limit; queueing does not count."""
    units: Units | None = None
    """Resource -> units, or [fewest, most], or of the pool's resource {"any_of": [...]}. Default: one core (sleep,
    noop: one slot)."""


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
    """Where commands start; empty: the image's own, or the private directory of a local one."""


class TrajectoryRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Opens a trajectory. Nothing is made before its first action."""

    batch: str | msgspec.UnsetType = msgspec.UNSET
    """The batch whose page counts the actions of this trajectory and how they failed. Unset is not encoded, so the
    digest of a request without it is the same in every version."""
    environment: EnvironmentSpec = EnvironmentSpec()
    """What it lives in."""
    group: str = ""
    """Your own name for those that start alike (GRPO)."""
    node_class: str = "default"
    """Where it lives."""
    request_id: str | None = None
    """Your own id: opening again with it and the same body is harmless and returns the same trajectory."""
    task: str | None = None
    """The RL job it belongs to, for people."""


TrajectoryActionKind = Literal[
    "env.bash", "env.close_session", "env.download", "env.exec", "env.list", "env.read", "env.upload", "env.write"
]
"""Kind of a TrajectoryAction: what it runs."""


class TrajectoryAction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One action in a trajectory's environment. Actions of one trajectory run one at a time, in the order they came."""

    kind: TrajectoryActionKind
    budget_s: float = 3600.0
    """Seconds after which nobody needs the answer."""
    duration_s: float | None = None
    """T, seconds on one unit. Default: as the history of its kind tells, once there is one."""
    elasticity: Elasticity = {}
    """Units -> efficiency E(m), or a model: {"model": "amdahl", "serial": s} or {"model": "power", "exponent": e}."""
    params: Mapping[str, Any] = {}
    priority: float = 0.0
    """Lower goes first among actions expected to complete at the same time."""
    request_id: str | None = None
    """Your own id, unique in the trajectory: sending again with it is harmless and returns the first answer."""
    timeout_s: float = 60.0
    """Execution limit; neither queueing counts nor making the environment. What meets it is ended; the environment goes
    on."""
    units: Units | None = None
    """Resource -> units, or [fewest, most], or of cores {"any_of": [...]}; cores it has while it acts, and no longer.
    More than the fewest are granted where `elasticity` and a duration are known. Default: one core."""
