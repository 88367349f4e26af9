"""What a trainer sends. A field that is left at its default is not sent, so that the mesh's own default holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

Units = Mapping[str, int | Sequence[int] | Mapping[str, Sequence[int]]]
"""Resource -> units: 2, [1, 8] (fewest and most), or {"any_of": [1, 2, 4]}."""
Scaling = Mapping[str, float | str]
"""Units -> efficiency, {"model": "amdahl", "serial": s} or {"model": "power", "exponent": e}. Empty: does not scale."""


class Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A body of the REST interface."""


class StageTemplate(Body, frozen=True, kw_only=True):
    """One step of a workflow: what to run for each request, and what it may use."""

    name: str
    kind: str
    """code.run, code.asserts, code.stdio, math.verify, answer.match, python.function, sleep, noop."""
    params: Mapping[str, Any] = {}
    """Parameters that all requests share; a request's own are laid over them."""
    units: Units | None = None
    """None: one core."""
    elasticity: Scaling = {}
    duration_s: float | None = None
    """Seconds on one unit. None: as the history of its kind says."""
    node_class: str = "default"
    timeout_s: float = 30.0
    """Execution limit. Queueing does not count."""
    timeout_score: float | None = None
    """Score of a request that meets this limit. None: the task's."""
    error_score: float | None = None
    """Score of a request whose sample ends `python.function` itself. None: 0."""
    exception_score: float | None = None
    """Score of a request for which `python.function` raises an exception. None: it is refused and masked."""
    worker_cost: float = 1.0
    """What one worker costs, in any unit common to the workflow."""


class Task(Body, frozen=True, kw_only=True):
    """One RL training job: its workflow and the delay it tolerates."""

    stages: Sequence[StageTemplate]
    """Run in order; a request ends early at a stage that fails."""
    batch_size: int | None = None
    """Reward requests of one batch. None: batches end when they are sealed."""
    max_extra_delay_s: float = 2.0
    """Seconds a batch may be complete later than with endless resources."""
    trainer_resources: float = 1.0
    """What waits while the trainer waits, e.g. its number of GPUs."""
    timeout_score: float = 0.0
    """Score of a request that meets a stage's limit."""
    budget_s: float = 3600.0
    """Seconds after which nobody needs a request's answer."""


class RewardRequest(Body, frozen=True, kw_only=True):
    """One sample to be rewarded."""

    batch: str | None = None
    task: str | None = None
    request_id: str | None = None
    """Your own id, unique in the batch: a request that is sent again returns the first answer."""
    params: Mapping[str, Any] = {}
    """Laid over each stage's parameters; a field goes to every stage whose kind has it."""
    stage_params: Mapping[str, Mapping[str, Any]] = {}
    """Stage name -> parameters for that stage alone."""
    priority: float = 0.0
    """Lower goes first inside the batch."""


class ActionRequest(Body, frozen=True, kw_only=True):
    """One action outside any batch."""

    kind: str
    params: Mapping[str, Any] = {}
    request_id: str | None = None
    units: Units | None = None
    elasticity: Scaling = {}
    duration_s: float | None = None
    node_class: str = "default"
    timeout_s: float = 60.0
    """Execution limit. Queueing does not count."""
    budget_s: float = 3600.0
    """Seconds after which nobody needs the answer."""
    priority: float = 0.0


class EnvironmentSpec(Body, frozen=True, kw_only=True):
    """One environment (docs/environments.md)."""

    image: str = "local"
    """`local`, or an image of a container engine."""
    memory_mb: int = 1024
    disk_mb: int = 1024
    pids: int = 256
    """Processes and threads at once."""
    env: Mapping[str, str] = {}
    setup: Sequence[str] = []
    """Bash lines, run once before the first action."""
    setup_timeout_s: float = 300.0
    workdir: str = ""
    network: bool = False
    """It may reach the network. `local` environments never may."""
    read_only: bool = False
    idle_s: float = 1800.0
    """It ends so long after its last action."""
    lifetime_s: float = 21_600.0
    """It ends so long after its first action."""


class TrajectoryRequest(Body, frozen=True, kw_only=True):
    """Opens a trajectory. Its environment is made for its first action."""

    environment: EnvironmentSpec = EnvironmentSpec()
    task: str | None = None
    """The RL job it belongs to, for people."""
    batch: str | msgspec.UnsetType = msgspec.UNSET
    """The batch whose page counts the actions of this trajectory."""
    group: str = ""
    """Your own name for those that start alike (GRPO)."""
    request_id: str | None = None
    """Your own id: opening again with it returns the same trajectory."""
    node_class: str = "default"


class TrajectoryAction(Body, frozen=True, kw_only=True):
    """One action in a trajectory's environment. Actions of one trajectory run one at a time."""

    kind: str
    """env.exec, env.bash, env.read, env.write, env.upload, env.download, env.list, env.close_session."""
    params: Mapping[str, Any] = {}
    request_id: str | None = None
    units: Units | None = None
    elasticity: Scaling = {}
    duration_s: float | None = None
    timeout_s: float = 60.0
    budget_s: float = 3600.0
    priority: float = 0.0
