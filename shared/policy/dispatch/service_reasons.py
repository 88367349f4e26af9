"""Reasons why no present node can ever serve the model service of an action."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.model.chunks import ServedModel, aligned
from shared.policy.resources.chunks import Chunks
from shared.policy.resources.model_residency import ROUNDING_GB

MOST_NAMED: Final = 8
"""Most declared services that a reason names."""


def why_unserved(cluster: ClusterState, action: ActionState) -> str:
    """Return why a stuck action finds no node with its model service; empty: it uses none, or no node offers its kind.

    O(nodes of its pool * their services) for one sort of work after a change of nodes, then O(1).
    """
    if not action.work.service:
        return ""
    known, sort = cluster.nodes.unserved, (action.work.service, action.work.kind, action.work.pool, _amounts(action))
    if sort not in known:
        cluster.nodes.remember_unserved(sort, _why_unserved(cluster, action))
    return known[sort]


def _why_unserved(cluster: ClusterState, action: ActionState) -> str:
    service, pool = action.work.service, cluster.queues.pool(action.work.pool)
    nodes = [node for node in cluster.nodes.of(pool) if action.work.kind in node.kinds]
    found = [one for node in nodes if isinstance(one := node.resources.get(action.resource), Chunks)]
    hosts = [(one, one.models.served[service]) for one in found if service in one.models.served]
    if hosts:
        return _why_no_chunk(cluster, action, hosts)
    if wrong := cluster.nodes.unusable.why(service):
        return wrong
    declared = sorted({name for one in found for name in one.models.served})
    of = f"no node of class {pool.node_class!r} has a model service {service!r}"
    return f"{of}; declared are {_listed(declared)}" if declared else ""


def _why_no_chunk(cluster: ClusterState, action: ActionState, hosts: list[tuple[Chunks, ServedModel]]) -> str:
    """Return why a service has no chunk, although nodes have it. Empty: what its nodes lack is something else."""
    service, resource, wanted = action.work.service, action.resource, _amounts(action)
    offered = sorted({degree for chunks, served in hosts for degree in served.degrees if _has(chunks, served, degree)})
    if offered and not set(wanted).intersection(offered):
        other = "".join(f" or {degree}" for degree in offered[1:])
        return (
            f"no engine of the model service {service!r} has {resource}={', '.join(map(str, wanted))}; "
            f'write "units": {{"{resource}": {offered[0]}}}{other}'
        )
    if list(_chunks(action, hosts)) and all(_chunks(action, hosts)):
        return f"each chunk of {resource} that the model service {service!r} could use has a faulty one"
    return cluster.nodes.quarantined.why(service)


def _has(chunks: Chunks, served: ServedModel, degree: int) -> bool:
    """Return whether units of a node, faulty ones included, have the number and the memory for an engine."""
    device_gb, needed_gb = chunks.models.device_gb, served.gb(degree) - ROUNDING_GB
    return any(
        min(device_gb[chunk.first : chunk.first + degree], default=0.0) >= needed_gb
        for chunk in aligned(chunks.capacity, degree)
    )


def _chunks(action: ActionState, hosts: Iterable[tuple[Chunks, ServedModel]]) -> Iterator[bool]:
    """Yield for each chunk that an engine of the service could have whether one of its units is faulty."""
    for chunks, served in hosts:
        for amount in set(_amounts(action)) & set(served.degrees):
            yield from (bool(chunk.mask & chunks.bad) for chunk in aligned(chunks.capacity, amount))


def _amounts(action: ActionState) -> tuple[int, ...]:
    """Return the units of an engine with which it can start."""
    return tuple(units.get(action.resource, 0) for units in action.choices())


def _listed(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
