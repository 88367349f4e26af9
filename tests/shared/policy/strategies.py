"""Requests, nodes and times as hypothesis draws them, and plain makers for written cases."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st
from msgspec.structs import replace

from services.cpu_manager.kinds import RESOURCES
from shared.policy.dispatch.stimuli import AttemptsEnded, NodeJoined, RequestsSubmitted
from shared.policy.model.elasticity import Elasticity
from shared.policy.model.formulation import EnvironmentNeed, Request, Work
from shared.policy.model.quotas import LEARNED, QuotaLimits, Rate
from shared.policy.model.reports import Ended
from shared.policy.resources.ledger import Node
from shared.policy.resources.resource import ResourceSpec, least_load

CORES = "cores@cpu"
SLOTS = "slots@cpu"
CHUNKS = "chunks@gpu"
SPECS = {
    **RESOURCES,
    "memory": ResourceSpec("environment", score=least_load),
    "calls": ResourceSpec(answers=True),
}
"""Properties of the resources of test nodes."""


def work(
    pool: str = CORES,
    units: Mapping[str, int] | None = None,
    *,
    kind: str = "run",
    timeout_s: float = 10.0,
    repeatable: bool = True,
    name: str = "run",
) -> Work:
    """A stage; one unit of its pool's resource by default."""
    return Work(name, kind, pool, units or {pool.partition("@")[0]: 1}, timeout_s, repeatable)


def request(
    name: str,
    *stages: Work,
    at_s: float = 0.0,
    seq: int = 0,
    batch: str = "",
    tenant: str = "ada",
    task: str = "t",
    deadline_s: float = 1e6,
    start_by_s: float | None = None,
    priority: float = 0.0,
) -> Request:
    """A request that has arrived at `at_s`; one stage of one core by default."""
    arrival = (round(at_s * 1000), seq)
    return Request(name, tenant, task, batch, arrival, stages or (work(),), deadline_s, start_by_s, priority)


def node(
    name: str = "n", capacity: Mapping[str, int] | None = None, *, kinds: str = "run", incarnation: str = "1"
) -> Node:
    """A CPU node that has sent its hello and nothing more."""
    return Node(name, incarnation, "cpu", capacity or {"cores": 4}, frozenset(kinds.split()), SPECS)


def joined(node: Node) -> NodeJoined:
    """The hello of a node."""
    return NodeJoined(node.name, node.incarnation, node.node_class, node.capacity, node.kinds, node.prefetches)


def submitted(*requests: Request) -> RequestsSubmitted:
    return RequestsSubmitted(requests)


def reported(*ends: Ended) -> AttemptsEnded:
    return AttemptsEnded(ends)


COSTS: tuple[tuple[str, Mapping[str, int]], ...] = (
    (CORES, {"cores": 1}),
    (CORES, {"cores": 4}),
    (CORES, {"cores": 2, "memory": 4}),
    (CORES, {"cores": 1, "memory": 7}),
    (CORES, {"cores": 9}),  # more than any node has
    (CORES, {"cores": 0}),
    (SLOTS, {"slots": 1, "memory": 2}),
    (CHUNKS, {"chunks": 2}),
    (CHUNKS, {"chunks": 1, "memory": 8}),
)
"""Pool and cost of the stages that are drawn."""

SCALED = replace(work(timeout_s=5.0), amounts=(1, 2, 3), elasticity=Elasticity("amdahl", serial=0.1), duration_s=3.0)
"""A stage that more cores would shorten."""

ENVIRONMENTS = tuple(EnvironmentNeed(f"t{size}", "runtime", {"memory": size}) for size in (1, 2, 4, 20))
"""Trajectories' environments; the last one needs more memory than any node has."""

QUOTAS = {
    "search": QuotaLimits((2.0,), (Rate(3.0, 5.0),), {"ada": 2.0}),
    "money": QuotaLimits((), (Rate(6.0), Rate(4.0, 10.0, 3.0))),
    "tokens": QuotaLimits((), (Rate(5.0, 4.0),), {"ada": 1.0, "bob": 3.0}),
    "changing": QuotaLimits((1.0,)),
}
"""Quotas of a mesh; only the last one is changed."""
AMOUNTS: tuple[Mapping[str, float], ...] = (
    {},
    {},
    {},
    {"search": 1.0},
    {"search": 1.0, "money": 0.7},
    {"money": 2.0},
    {"changing": 1.0},
    {"search": 2.0, "changing": 0.5},
    {"tokens": 2.5},
    {"search": 1.0, "tokens": 0.5},
    {"tokens": 1.0, "changing": 1.0, "search": 0.5},
    {"search": 1.0, "changing": LEARNED},
    {"search": 9.0},  # more than it ever gives
)
"""Quotas of the stages that are drawn."""

acts = st.fixed_dictionaries(
    {
        "quotas": st.sampled_from(AMOUNTS),
        "need": st.sampled_from(ENVIRONMENTS),
        "work": st.builds(
            lambda cores, repeatable, scales: (
                replace(SCALED, kind="act", repeatable=repeatable)
                if scales
                else work(units={"cores": cores}, kind="act", timeout_s=5.0, repeatable=repeatable)
            ),
            st.integers(1, 3),
            st.booleans(),
            st.booleans(),
        ),
        "budget_s": st.sampled_from([3.0, 1e6, 1e6]),
    }
)
"""An action of a trajectory without its name and its time."""

works = st.just(SCALED) | st.builds(
    lambda cost, kind, timeout_s, repeatable, quotas: replace(
        work(cost[0], cost[1], kind=kind, timeout_s=timeout_s, repeatable=repeatable), quotas=quotas
    ),
    st.sampled_from(COSTS),
    st.sampled_from(["run", "run", "run", "judge"]),
    st.sampled_from([1.0, 5.0]),
    st.booleans(),
    st.sampled_from(AMOUNTS),
)

drafts = st.fixed_dictionaries(
    {
        "stages": st.lists(works, min_size=1, max_size=3).map(tuple),
        "batch": st.sampled_from(["", "b1", "b2"]),
        "tenant": st.sampled_from(["ada", "bob"]),
        "budget_s": st.sampled_from([3.0, 20.0, 1e6, 1e6]),
        "start_within_s": st.sampled_from([None, None, 0.5, 10.0]),
        "priority": st.sampled_from([0.0, 1.0]),
    }
)
"""A request without its name and its time."""
