"""Reports of a node's model services: for the leader, where each is resident or quarantined; for people, a page."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from services.gpu_manager.devices import GpuDevice
from services.gpu_manager.kinds import GPUS
from shared.messages.model_services import EngineState, GpuState, ServiceOffer, ServingPage
from shared.messages.outcomes import ServiceHeld, ServicesChanged
from shared.model_services.entries import ServiceEntry
from shared.node.identity import NodeIdentity
from shared.policy.serving.model import InstanceId
from shared.policy.serving.node_view import InstanceView
from shared.runtime.clock import Clock
from shared.runtime.units import Seconds

LEAST_RESTORE_S: Final[Seconds] = 1.0
"""Rest of a restore that is reported at least: it may take longer than expected."""
_RESIDENT: Final = frozenset({"resident", "running"})


def services_of(
    identity: NodeIdentity,
    entries: Mapping[str, ServiceEntry],
    views: Iterable[InstanceView],
    device_gb: Iterable[float],
    bad: Iterable[int] = (),
    now: Seconds = 0.0,
) -> ServicesChanged:
    """Return the report. `now`: of the views' clock. O(services + instances)."""
    resident: dict[str, list[tuple[int, int]]] = {}
    unusable: dict[str, list[tuple[int, int]]] = {}
    restoring: dict[str, Seconds] = {}
    for view in views:
        service, (first, size) = view.instance
        if view.ready_s is not None:
            left_s = max(LEAST_RESTORE_S, view.ready_s - now)
            restoring[service] = min(left_s, restoring.get(service, left_s))
        if view.state in _RESIDENT:
            resident.setdefault(service, []).append((first, size))
        elif view.state == "quarantined":
            unusable.setdefault(service, []).append((first, size))
    device_gb = list(device_gb)
    services = [
        ServiceHeld(
            service=name,
            degrees=sorted(entry.degrees),
            concurrency=entry.concurrency,
            awake_gb=entry.memory_gb.awake,
            resident=resident.get(name, []),
            unusable=[*unusable.get(name, []), *_elsewhere(entry, len(device_gb))],
            restoring_s=restoring.get(name, 0.0),
        )
        for name, entry in sorted(entries.items())
    ]
    return ServicesChanged(
        node=identity.node,
        incarnation=identity.incarnation,
        resource=GPUS,
        services=services,
        device_gb=device_gb,
        bad=sorted(bad),
    )


def _elsewhere(entry: ServiceEntry, gpus: int) -> Iterator[tuple[int, int]]:
    """Yield the chunks where no engine of a service can be, because its engines run already."""
    for degree in entry.degrees:
        own = entry.first_gpu_of(degree)
        if own is not None:
            yield from ((first, degree) for first in range(0, gpus - degree + 1, degree) if first != own)


def cold_start_s(views: Iterable[InstanceView]) -> dict[str, Seconds]:
    """Return the median of the measured restores, loads among them: the time until an owned GPU executes."""
    took = [each for view in views for name, each in view.measured_s.items() if name.startswith("restore")]
    return {GPUS: statistics.median(took)} if took else {}


def page_of(
    identity: NodeIdentity,
    entries: Mapping[str, ServiceEntry],
    views: Iterable[InstanceView],
    devices: Iterable[GpuDevice],
    clock: Clock,
    addresses: Mapping[InstanceId, str] = MappingProxyType({}),
) -> ServingPage:
    """Return the page. `addresses`: of engines, to be published. O(services + instances)."""
    offset_s = clock.unix() - clock.monotonic()
    return ServingPage(
        node=identity.node,
        incarnation=identity.incarnation,
        at=clock.unix(),
        services={name: _offer(entry) for name, entry in sorted(entries.items())},
        engines=[_engine(view, offset_s, addresses.get(view.instance, "")) for view in views],
        gpus=[
            GpuState(number=one.number, name=one.name, memory_gb=one.memory_gb, measured=one.measured)
            for one in devices
        ],
    )


def _offer(entry: ServiceEntry) -> ServiceOffer:
    return ServiceOffer(
        backend=entry.backend,
        api=entry.api,
        model=entry.model,
        degrees=sorted(entry.degrees),
        concurrency=entry.concurrency,
        awake_gb=entry.memory_gb.awake,
        asleep_gb=entry.memory_gb.asleep,
        priority=entry.priority,
        min_residency_s=entry.min_residency_s,
    )


def _engine(view: InstanceView, offset_s: Seconds, address: str) -> EngineState:
    return EngineState(
        service=view.instance.service,
        gpus=list(view.instance.chunk.gpus),
        state=view.state,
        since=round(view.since_s + offset_s, 3),
        why=view.why,
        level=view.level or "",
        running=len(view.running),
        waiting=len(view.waiting),
        device_gb=view.device_gb,
        host_gb=view.host_gb,
        probe_at=None if view.probe_s is None else round(view.probe_s + offset_s, 3),
        measured_s={name: round(took_s, 3) for name, took_s in view.measured_s.items()},
        address=address if view.state in _RESIDENT else "",
    )
