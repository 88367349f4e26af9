"""Bodies of /v1/nodes, /v1/pools, /v1/plans and /v1/health."""

from __future__ import annotations

from typing import Literal

from shared.api.tasks import Model

NodeState = Literal["ready", "silent", "gone"]


class NodeView(Model):
    """One executing host."""

    name: str
    incarnation: str
    node_class: str
    state: NodeState
    """`silent`: no heartbeat has arrived for `PROXY_NODE_LOST_S`. `gone`: it has stopped in good order."""
    capacity: dict[str, int]
    owned: dict[str, int]
    used: dict[str, int]
    owned_unit_s: dict[str, float]
    """Unit-seconds held since its start."""
    used_unit_s: dict[str, float]
    cold_start_s: dict[str, float] = {}
    """Resource -> seconds from owning a unit to a worker that executes on it, as recently measured by the node."""
    kinds: list[str]
    runtimes: list[str] = []
    """Runtimes that can create environments of trajectories: `local`, `docker`."""
    labels: dict[str, str]
    """Sandbox rung, languages with versions ..."""
    last_seen_s: float
    """Seconds since its last message."""


class NodeList(Model):
    """All nodes that were seen recently."""

    nodes: list[NodeView]


class PoolView(Model):
    """Units of one resource on the nodes of one class."""

    name: str
    nodes: int
    """Ready nodes."""
    target: int | None
    """Units that the planner decided to hold; null before its first plan: all units are held."""
    capacity: int
    owned: int
    used: int
    waiting: int
    """Actions in its queue, including stuck ones."""
    stuck: int
    """Actions that no present node can execute. They wait for another node until their budget ends."""
    lacks: list[str]
    """Causes of stuck actions, the most frequent first: what no node offers, or what a quota cannot give."""
    reason: str
    """Reason of the target."""


class StoreView(Model):
    """Status of Postgres, measured by one replica of the proxy."""

    answers: bool | None
    """Null: not checked yet."""


class ValkeyView(StoreView):
    """Status of Valkey, measured by one replica of the proxy."""

    used_bytes: int | None
    """Memory at the last reply."""
    bound_bytes: int | None
    """Bound at which submissions are answered 503; 0: none."""


class DiskView(Model):
    """The fullest disk that holds a store on this machine."""

    path: str
    free_bytes: int
    total_bytes: int
    reserve_bytes: int
    """New work is accepted while at least this much is free."""


class HealthView(Model):
    """Parts of the mesh, at most a few seconds old."""

    valkey: ValkeyView
    postgres: StoreView
    disk: DiskView | None
    """Null: the stores are on other machines."""
    leader: bool | None
    """A proxy holds the dispatching lease; null: unknown, because Valkey does not answer."""
    planner: bool | None
    """A planner holds its lease; null: unknown. Without one, targets follow the queues (zero-queue rule)."""
    problems: list[str]
    """One sentence for each part with a problem; empty: none has one."""


class PoolList(Model):
    """All pools."""

    pools: list[PoolView]
    health: HealthView


class PlanView(Model):
    """One decision of the scaling planner."""

    decided_at: float
    pool: str
    previous: int | None
    target: int
    reason: str


class PlanList(Model):
    """Decisions, newest first."""

    plans: list[PlanView]
