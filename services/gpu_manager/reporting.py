"""Reports of a node's model services: for the leader, where each is resident, asleep or quarantined; for people, a
page.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from services.gpu_manager.devices import GpuDevice
from services.gpu_manager.kinds import GPUS
from shared.messages.model_services import EngineState, GpuState, ServiceOffer, ServingPage
from shared.messages.nodes import ServiceCapacity
from shared.messages.outcomes import ServiceHeld, ServicesChanged
from shared.model_services.entries import ServiceEntry
from shared.node.identity import NodeIdentity
from shared.policy.serving.model import InstanceId
from shared.policy.serving.node_view import InstanceView
from shared.runtime.clock import Clock
from shared.runtime.units import Seconds

MOST_WHY: Final = 300
"""Characters of the reason of an engine that serves no action; the leader keeps 512 of it and the time of its probe."""
_Measured = tuple[bool, Seconds]
"""One measured restore: whether it began where the next one begins, and its seconds."""
_LOAD: Final = "restore cold"
LEAST_RESTORE_S: Final[Seconds] = 1.0
"""Rest of a restore that is reported at least: it may take longer than expected."""
_RESIDENT: Final = frozenset({"resident", "running", "loading", "restoring"})
"""States that are reported as resident: an action waits there for less than for a restore on another chunk."""
_ANSWERS: Final = frozenset({"resident", "running"})
"""States in which an engine answers calls: its address is published."""


def services_of(
    identity: NodeIdentity,
    entries: Mapping[str, ServiceEntry],
    views: Iterable[InstanceView],
    device_gb: Iterable[float],
    bad: Iterable[int] = (),
    released: Iterable[int] = (),
    now: Seconds = 0.0,
    problems: Mapping[str, str] = MappingProxyType({}),
    offset_s: Seconds = 0.0,
) -> ServicesChanged:
    """Return the report. `now`: of the views' clock. `problems`: of wrong entries. `offset_s`: from the views' clock to
    Unix time. O(services + instances).
    """
    resident: dict[str, list[tuple[int, int]]] = {}
    unusable: dict[str, list[tuple[int, int]]] = {}
    reasons: dict[str, tuple[Seconds, str]] = {}
    asleep: dict[str, list[tuple[int, int, Seconds]]] = {}
    restoring: dict[str, Seconds] = {}
    measured: dict[str, dict[int, list[_Measured]]] = {}
    evictions: dict[str, dict[int, Seconds]] = {}
    for view in views:
        service, (first, size) = view.instance
        if restores := _restores(view, _LOAD):
            measured.setdefault(service, {}).setdefault(size, []).extend(restores)
        if (evict_s := _evict_s(view.measured_s)) is not None:
            by_degree = evictions.setdefault(service, {})
            by_degree[size] = max(evict_s, by_degree.get(size, 0.0))
        if view.ready_s is not None:
            left_s = max(LEAST_RESTORE_S, view.ready_s - now)
            restoring[service] = min(left_s, restoring.get(service, left_s))
        if view.state == "quarantined" or view.yields:
            unusable.setdefault(service, []).append((first, size))
            reason = _why_unusable(view, offset_s)
            reasons[service] = min(reason, reasons.get(service, reason))
        elif view.state in _RESIDENT:
            resident.setdefault(service, []).append((first, size))
        elif view.state == "evicted" and view.level is not None:
            restore_s = view.measured_s.get(f"restore {view.level}", 0.0)
            asleep.setdefault(service, []).append((first, size, round(restore_s, 3)))
    device_gb = list(device_gb)
    services = [
        ServiceHeld(
            service=name,
            degrees=sorted(entry.degrees),
            concurrency=entry.concurrency,
            awake_gb=max(entry.awake_gb_by.values()),
            resident=resident.get(name, []),
            unusable=[*unusable.get(name, []), *_impossible(entry, device_gb)],
            restoring_s=restoring.get(name, 0.0),
            restore_s={degree: _restore_s(took, 0.0) for degree, took in sorted(measured.get(name, {}).items())},
            evict_s=evictions.get(name, {}),
            awake_gb_by=entry.awake_gb_by,
            asleep=asleep.get(name, []),
            why_unusable=reasons.get(name, (0.0, ""))[1],
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
        released=sorted(released),
        problems=dict(problems),
    )


def _why_unusable(view: InstanceView, offset_s: Seconds) -> tuple[Seconds, str]:
    """Return the time of the next probe, infinite without one, and why an engine serves no action."""
    why = view.why[:MOST_WHY]
    if view.state != "quarantined":
        return math.inf, why or "its load or restore is late"
    if view.probe_s is None or not math.isfinite(view.probe_s):
        return math.inf, f"quarantined: {why}"
    probe_at = datetime.fromtimestamp(view.probe_s + offset_s, UTC)
    return view.probe_s, f"quarantined: {why}; the next probe is at {probe_at:%Y-%m-%dT%H:%M:%SZ}"


def _impossible(entry: ServiceEntry, device_gb: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Yield the chunks where no engine of a service can be: it runs elsewhere already, or a GPU has too little memory.

    O(GPUs x degrees).
    """
    for degree, needed_gb in entry.awake_gb_by.items():
        own = entry.first_gpu_of(degree)
        for first in range(0, len(device_gb) - degree + 1, degree):
            if own not in (None, first) or min(device_gb[first : first + degree]) < needed_gb:
                yield first, degree


def cold_start_s(views: Iterable[InstanceView], acquire_s: Seconds = 0.0) -> dict[str, Seconds]:
    """Return the time from owning a GPU until it executes: the median of the measured restores, loads among them, after
    the acquisition of a GPU that was given away.
    """
    took = [each for view in views for name, each in view.measured_s.items() if name.startswith("restore")]
    return {GPUS: acquire_s + statistics.median(took)} if took else {}


def service_capacity(
    entries: Mapping[str, ServiceEntry], views: Iterable[InstanceView], acquire_s: Seconds = 0.0
) -> dict[str, ServiceCapacity]:
    """Return what the planner needs of each service. O(services + instances)."""
    measured: dict[str, list[_Measured]] = {}
    for view in views:
        here = f"restore {view.level or 'cold'}"
        measured.setdefault(view.instance.service, []).extend(_restores(view, here))
    return {
        name: ServiceCapacity(
            resource=GPUS,
            degrees=sorted(entry.degrees),
            concurrency=entry.concurrency,
            restore_s=_restore_s(measured.get(name, []), acquire_s),
        )
        for name, entry in entries.items()
    }


def _restores(view: InstanceView, following: str) -> list[_Measured]:
    """Return its measured restores. `following`: name of the next one."""
    return [(name == following, took_s) for name, took_s in view.measured_s.items() if name.startswith("restore")]


def _restore_s(measured: Iterable[_Measured], acquire_s: Seconds) -> Seconds:
    """Return the time of the next restore: the longest from where it begins, else the longest of all."""
    longest = max(measured, default=None)
    return 0.0 if longest is None else round(acquire_s + longest[1], 3)


def _evict_s(measured_s: Mapping[str, Seconds]) -> Seconds | None:
    """Return the time of the next eviction: to the level whose eviction and restore cost least. None: not measured."""
    evictions = {
        name.removeprefix("evict "): took_s for name, took_s in measured_s.items() if name.startswith("evict ")
    }
    cost_s = {level: took_s + measured_s.get(f"restore {level}", 0.0) for level, took_s in evictions.items()}
    return round(evictions[min(cost_s, key=lambda level: cost_s[level])], 3) if cost_s else None


def page_of(
    identity: NodeIdentity,
    entries: Mapping[str, ServiceEntry],
    views: Iterable[InstanceView],
    devices: Iterable[GpuDevice],
    clock: Clock,
    ownership: Callable[[int], tuple[str, str]] = lambda _: ("", ""),
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
        gpus=[_gpu(one, *ownership(one.number)) for one in devices],
    )


def _gpu(device: GpuDevice, ownership: str, why: str) -> GpuState:
    return GpuState(
        number=device.number,
        name=device.name,
        memory_gb=device.memory_gb,
        measured=device.measured,
        ownership=ownership,
        why=why,
    )


def _offer(entry: ServiceEntry) -> ServiceOffer:
    return ServiceOffer(
        backend=entry.backend,
        api=entry.api,
        model=entry.model,
        degrees=sorted(entry.degrees),
        concurrency=entry.concurrency,
        awake_gb=max(entry.awake_gb_by.values()),
        asleep_gb=max(map(entry.asleep_gb, entry.degrees)),
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
        address=address if view.state in _ANSWERS else "",
    )
