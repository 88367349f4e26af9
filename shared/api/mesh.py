"""What there is, who uses it, what the planner decided: bodies of /v1/nodes, /v1/pools, /v1/plans."""

from __future__ import annotations

from shared.api.tasks import Model


class NodeView(Model):
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
    cold_start_s: dict[str, float] = {}
    """Resource -> seconds from owning a unit to a worker that executes on it, as the node lately measured it."""
    kinds: list[str]
    runtimes: list[str] = []
    """Where environments of trajectories can be made: `local`, `docker`."""
    labels: dict[str, str]
    """Sandbox rung, languages with versions ..."""
    last_seen_s: float
    """Seconds since its last sign of life."""


class NodeList(Model):
    """All nodes that said hello lately."""

    nodes: list[NodeView]


class PoolView(Model):
    """(resource, node class): what stages draw their units from."""

    name: str
    nodes: int
    """That are ready."""
    target: int | None
    """Units the planner wants; None before its first plan: then all there is."""
    capacity: int
    owned: int
    used: int
    waiting: int
    """Actions in its queue, those that are stuck among them."""
    stuck: int
    """Actions that no present node could ever take; they wait for one until their budget ends."""
    lacks: list[str]
    """What they would need, the most wanted first."""
    reason: str
    """Why the target is what it is."""


class StoreView(Model):
    """Postgres, as one replica of the proxy sees it."""

    answers: bool | None
    """None: not looked at yet."""


class ValkeyView(StoreView):
    """Valkey, as one replica of the proxy sees it."""

    used_bytes: int | None
    """Memory at the last reply."""
    bound_bytes: int | None
    """At this bound submissions are answered 503; 0: none."""


class DiskView(Model):
    """The fullest disk that holds a store on this machine."""

    path: str
    free_bytes: int
    total_bytes: int
    reserve_bytes: int
    """New work is accepted while so much is free."""


class HealthView(Model):
    """Parts of the mesh, at most a few seconds old."""

    valkey: ValkeyView
    postgres: StoreView
    disk: DiskView | None
    """None: the stores are on other machines."""
    leader: bool | None
    """A proxy holds the dispatching lease; None: unknown while Valkey is away."""
    planner: bool | None
    """A planner holds its lease. While none does, pools follow what waits (zero-queue rule)."""
    problems: list[str]
    """One sentence for each part that is not well; empty: all is well."""


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
    """Newest first."""

    plans: list[PlanView]
