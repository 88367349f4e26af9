"""Views of model services: nodes' pages, and what REST has declared. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from shared.api.model_services import EngineView, EntryView, GpuView, ModelServiceView, ServiceProblem
from shared.bus.model_services import FRESH_S, Declared, DeclaredSet
from shared.messages.model_services import EngineState, ServiceOffer, ServingPage, ShownEntry
from shared.model_services.shown import shown

_SHOWN: Final = ("number", "name", "memory_gb", "ownership", "why")
"""Fields of a GPU's view that its page has."""
_NEAREST: Final = (
    "running", "resident", "draining", "restoring", "evicted", "loading", "evicting", "cold", "unknown", "quarantined",
)  # fmt: skip
"""States of engines, the nearest to the execution of an action first."""


def service_views(pages: Sequence[ServingPage], declared: DeclaredSet) -> list[ModelServiceView]:
    """Return all services by name: those that nodes use, those whose entries nodes cannot use, and those that REST
    declares. O(services * nodes).
    """
    known = (name for page in pages for name in (*page.services, *page.problems))
    names = {*known, *declared.services}
    return [_view(name, pages, declared.services.get(name)) for name in sorted(names)]


def gpu_views(pages: Sequence[ServingPage]) -> list[GpuView]:
    """Return all GPUs by node and number. O(GPUs)."""
    return [
        GpuView(node=page.node, **{name: getattr(one, name) for name in _SHOWN})
        for page in sorted(pages, key=lambda page: page.node)
        for one in page.gpus
    ]


def _view(name: str, pages: Sequence[ServingPage], declared: Declared | None) -> ModelServiceView:
    """Return a service as the first node uses it that has applied its declaration."""
    users = [page for page in pages if name in page.services]
    source = "file" if declared is None else "rest"
    first = min(users, key=lambda page: page.services[name].source != source, default=None)
    offer = None if first is None else first.services[name]
    entry = _entry(offer, declared)
    declaration = None if declared is None else declared.declaration
    reference = None if declaration is None else declaration.reference
    problems = [ServiceProblem(node=page.node, why=page.problems[name]) for page in pages if name in page.problems]
    engines = list(_engines(name, users))
    pending = [page.node for page in pages if _is_pending(name, page, declared)]
    state, why = _state(engines, problems, has_node=bool(users), is_pending=bool(pending), has_pages=bool(pages))
    return ModelServiceView(
        name=name,
        source=source,
        refers_to="" if reference is None else reference.entry,
        entry=None if entry is None else EntryView(**msgspec.structs.asdict(entry)),
        backend=offer.backend if offer else entry.backend if entry else "",
        api=offer.api if offer else entry.api if entry else "",
        model=offer.model if offer else entry.model if entry else "",
        degrees=offer.degrees if offer else entry.degrees if entry else [],
        concurrency=offer.concurrency if offer else entry.concurrency if entry else 0,
        awake_gb=offer.awake_gb if offer else entry.memory_gb["awake"] if entry else 0.0,
        nodes=[page.node for page in users],
        pending=pending,
        problems=problems,
        state=state,
        why=why,
        engines=engines,
    )


def _state(
    engines: Sequence[EngineView],
    problems: Sequence[ServiceProblem],
    *,
    has_node: bool,
    is_pending: bool,
    has_pages: bool,
) -> tuple[str, str]:
    """Return the state of a service, and why."""
    if engines:
        nearest = min(engines, key=lambda one: _NEAREST.index(one.state) if one.state in _NEAREST else len(_NEAREST))
        return nearest.state, nearest.why
    if problems:
        return "cold" if has_node else "quarantined", f"{problems[0].node}: {problems[0].why}"
    if has_node:
        return "cold", "no action has needed it"
    if not has_pages:
        return "cold", "no node has it: no GPU manager reports to this mesh"
    return "cold", "no node has it yet: none has applied its declaration" if is_pending else "no node uses it"


def _entry(offer: ServiceOffer | None, declared: Declared | None) -> ShownEntry | None:
    if offer is not None:
        return offer.shown
    whole = None if declared is None or declared.declaration is None else declared.declaration.whole
    return None if whole is None else shown(whole, with_commands=False)


def _is_pending(name: str, page: ServingPage, declared: Declared | None) -> bool:
    """Return whether a node has not applied the last change of a service."""
    if declared is not None:
        return page.change < declared.change
    return name in page.services and page.services[name].source == "rest"


def _engines(name: str, users: Iterable[ServingPage]) -> Iterable[EngineView]:
    return (_engine(page, one) for page in users for one in page.engines if one.service == name)


def _engine(page: ServingPage, one: EngineState) -> EngineView:
    fields = msgspec.structs.asdict(one)
    del fields["service"]
    return EngineView(node=page.node, lease_until=page.at + FRESH_S if one.address else None, **fields)
