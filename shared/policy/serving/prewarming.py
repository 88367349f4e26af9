"""Prewarming: chunks on which model services are restored before the first request of a batch.

Laws (tests/shared/policy/serving/test_prewarming.py): nothing is chosen for a service that has an engine which is
resident or becomes so; a chunk is never chosen if an engine on it has work or a step, or serves another wanted service.
Among the others, one where the service sleeps is first, then one without an awake engine, then the one that was changed
least recently.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from shared.policy.model.chunks import SIZES, Chunk
from shared.policy.serving.model import InstanceId
from shared.policy.serving.node_view import InstanceView

_READY: Final = frozenset({"resident", "running", "loading", "restoring"})


def to_prewarm(
    wanted: Mapping[str, int], views: Sequence[InstanceView], usable: Collection[int], most: int
) -> list[InstanceId]:
    """Return the instances to restore now: one for each wanted service that has none, as long as chunks are left.

    Args:
        wanted: service -> degree, the most urgent first.
        views: of the node's instances.
        usable: GPUs that may be used.
        most: GPUs that the node owns, busy ones included.

    O(wanted x GPUs x instances).
    """
    needed = [(name, degree) for name, degree in wanted.items() if not is_ready(name, views) and degree in SIZES]
    taken = {gpu for view in views if _is_kept(view, wanted) for gpu in view.instance.chunk.gpus}
    chosen = list[InstanceId]()
    for name, degree in needed:
        chunks = [Chunk(first, degree) for first in range(0, max(usable, default=-1) + 1, degree)]
        chunks = [one for one in chunks if all(gpu in usable and gpu not in taken for gpu in one.gpus)]
        chunks = [one for one in chunks if not _is_quarantined(InstanceId(name, one), views)]
        if not chunks or len(taken) + degree > most:
            continue
        best = min(chunks, key=lambda chunk: _rank(InstanceId(name, chunk), views))
        chosen.append(InstanceId(name, best))
        taken.update(best.gpus)
    return chosen


def is_ready(service: str, views: Iterable[InstanceView]) -> bool:
    """Return whether an engine of a service is resident, or becomes so."""
    return any(view.instance.service == service and view.state in _READY for view in views)


def _is_kept(view: InstanceView, wanted: Collection[str]) -> bool:
    """Return whether nothing else may be restored on its GPUs."""
    works = bool(view.running or view.waiting or view.step is not None)
    return works or view.state == "unknown" or (view.state in _READY and view.instance.service in wanted)


def _is_quarantined(one: InstanceId, views: Iterable[InstanceView]) -> bool:
    return any(view.instance == one and view.state == "quarantined" for view in views)


def _rank(one: InstanceId, views: Sequence[InstanceView]) -> tuple[bool, bool, float, int]:
    there = [view for view in views if view.instance.chunk.overlaps(one.chunk)]
    awake = [view for view in there if view.state in _READY]
    sleeps = any(view.instance == one and view.level is not None for view in there)
    return not sleeps, bool(awake), max((view.since_s for view in awake), default=0.0), one.chunk.first
