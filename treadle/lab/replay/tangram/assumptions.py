"""Values with their sources: statements of the paper, and assumptions where it states nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

T = TypeVar("T", int, float)


def assumed(value: T, source: str) -> T:
    """Return a dataclass field with a default and its source."""
    found: T = field(default=value, metadata={"source": source})
    return found


def assumptions_of(of: Any) -> Iterator[tuple[str, float, str]]:
    """Name, value and source of each `assumed` field of a dataclass."""
    for one in fields(of):
        yield one.name, getattr(of, one.name), one.metadata["source"]


@dataclass(frozen=True)
class Cluster:
    """The CPUs that trajectories share."""

    nodes: int = assumed(5, "§6.3: 1,280 cores across five nodes")
    cores: int = assumed(256, "§6.1: of a node")
    memory_mb: int = assumed(2_400_000, "§6.1: of a node")

    @property
    def all_cores(self) -> int:
        return self.nodes * self.cores


@dataclass(frozen=True)
class Overheads:
    """Overheads that our own system adds to an action. The action holds its cores during them."""

    action_s: float = assumed(0.01, "ours: the target for allocate, run, release and answer in a live container")
    begin_s: float = assumed(1.0, "ours: a container is made and started with the first action")
    memory_mb: int = assumed(4096, "ours: of one environment, for its whole life; both systems have enough")


@dataclass(frozen=True)
class PodRules:
    """Rules of the Kubernetes baseline: one pod for each trajectory, from its beginning to its end."""

    request: float = assumed(0.5, "§6.1: CPUs a pod is allocated, which is what the scheduler counts")
    limit: int = assumed(4, "§6.1: CPUs a pod may use at most")
    width: int = assumed(4, "ours: rewards run as wide as the limit; §6.4 takes DoP 4 as usual in practice")
    creations_per_s: float = assumed(10.0, "ours, unpublished: pods the control plane creates; see the sweep")
    timeout_s: float = assumed(120.0, "ours, unpublished: a creation that has waited so long fails; see the sweep")
    backoff_s: float = assumed(10.0, "ours: before the second try, doubled for each one after it, as Kubernetes does")
    most_backoff_s: float = assumed(300.0, "ours: Kubernetes' own cap; never less than pods for all would take")
    start_s: float = assumed(3.0, "ours: sandbox, network and container of a pod that has been placed")

    def __post_init__(self) -> None:
        """Raises:
        ValueError: every creation would time out.
        """
        if self.timeout_s * self.creations_per_s <= 1.0:
            raise ValueError(f"a pod takes {1.0 / self.creations_per_s:g} s: a timeout must be longer")


CLUSTER = Cluster()
OVERHEADS = Overheads()
PODS = PodRules()
