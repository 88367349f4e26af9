"""Entries as people see them over REST: without values of environments, which may be secrets.

Law: command lines and addresses are shown only where the operator allows commands over REST.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from shared.messages.model_services import ShownEntry
from shared.model_services.entries import MemoryNeed, ServiceEntry


def shown(entry: ServiceEntry, *, with_commands: bool) -> ShownEntry:
    """Return an entry for people. `with_commands`: show its commands and addresses."""
    degrees = sorted(entry.degrees)
    memory = {degree: _memory(entry, degree) for degree in degrees}
    return ShownEntry(
        backend=entry.backend,
        api=entry.api,
        model=entry.model,
        degrees=degrees,
        memory_gb={name: max(one[name] for one in memory.values()) for name in memory[degrees[0]]},
        memory_gb_by_degree=_by_degree(memory.items()) if _has_degrees(entry.memory_gb) else {},
        concurrency=entry.concurrency,
        priority=entry.priority,
        min_residency_s=entry.min_residency_s,
        start_s=entry.start_s,
        load_s=entry.load_s,
        health=entry.health,
        keep_connections=entry.keeps_connections,
        canary=_canary(entry),
        env=sorted(entry.env),
        command=_by_degree((degree, entry.command_of(degree)) for degree in degrees) if with_commands else {},
        url=_by_degree((degree, entry.url_of(degree)) for degree in degrees) if with_commands else {},
        first_gpu=_by_degree((degree, entry.first_gpu_of(degree)) for degree in degrees),
    )


def _memory(entry: ServiceEntry, degree: int) -> dict[str, float]:
    memory = {"awake": entry.awake_gb(degree), "asleep": entry.asleep_gb(degree)}
    return memory if entry.memory_gb.host is None else {**memory, "host": entry.host_gb(degree)}


def _has_degrees(memory: MemoryNeed) -> bool:
    """Return whether some memory is declared by degree."""
    return any(isinstance(given, dict) for given in msgspec.structs.astuple(memory))


def _canary(entry: ServiceEntry) -> dict[str, Any]:
    canary = entry.canary
    if canary is None:
        return {}
    fields = msgspec.structs.asdict(canary)
    return {name: value for name, value in fields.items() if value not in ("", None, {})}


def _by_degree(values: Iterable[tuple[int, Any]]) -> dict[str, Any]:
    return {str(degree): value for degree, value in values if value not in (None, "")}
