"""Declared services as the machine of engines sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from shared.model_services.entries import ServiceEntry
from shared.policy.model.chunks import Chunk
from shared.policy.serving.model import (
    EngineMemory,
    InstanceId,
    Level,
    ModelServiceSpec,
)

LEVELS: Final[dict[str, tuple[Level, ...]]] = {
    "process": ("cold",),
    "vllm": ("asleep1", "asleep2", "cold"),
    "sglang": ("asleep1", "cold"),
    "torch": ("asleep1", "cold"),
}
"""Levels of each backend, as `Backend.flags` has them. An engine that was given by its URL has no `cold`: its
stop puts it to sleep at its deepest level (`backends.given_engines`)."""
_CHANGEABLE: Final = ("concurrency", "priority", "min_residency_s", "load_s")
"""Fields with which an engine need not be started again."""


def spec_of(name: str, entry: ServiceEntry) -> ModelServiceSpec:
    """Return the specification of a service."""
    levels, degrees = LEVELS[entry.backend], tuple(sorted(entry.degrees))
    if entry.url is not None:
        levels = tuple(level for level in levels if level != "cold")
    memory = {degree: _memory(entry, degree, levels) for degree in degrees}
    first = memory[degrees[0]]
    return ModelServiceSpec(
        name,
        first.awake_gb,
        levels,
        degrees,
        asleep_gb=first.asleep_gb,
        host_gb=first.host_gb,
        concurrency=entry.concurrency,
        min_residency_s=entry.min_residency_s,
        priority=entry.priority,
        revision=revision(entry),
        memory_by={degree: one for degree, one in memory.items() if one != first},
        load_s=entry.load_s,
    )


def _memory(entry: ServiceEntry, degree: int, levels: Collection[Level]) -> EngineMemory:
    return EngineMemory(
        entry.awake_gb(degree),
        {level: entry.asleep_gb(degree) for level in levels if level != "cold"},
        {"asleep1": entry.host_gb(degree)} if "asleep1" in levels else {},
    )


def given_engines(name: str, entry: ServiceEntry) -> Iterator[InstanceId]:
    """Yield the engines of a service that run already."""
    for degree in entry.degrees:
        first = entry.first_gpu_of(degree)
        if first is not None:
            yield InstanceId(name, Chunk(first, degree))


def revision(entry: ServiceEntry) -> str:
    """Return a digest of what an engine was started with."""
    fields = {
        name: value for name, value in msgspec.to_builtins(entry, str_keys=True).items() if name not in _CHANGEABLE
    }
    return hashlib.blake2b(msgspec.json.encode(fields, order="sorted"), digest_size=8).hexdigest()
