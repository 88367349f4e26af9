"""Services that REST declares, on this node: read at each heartbeat, and applied to its engines.

Law: after each `refresh` the engines' services are exactly `used_entries` of the file and of what was read, and that
of the manager itself, whose memory follows from theirs (`own_chunk`). So a restart of the manager, the proxy or the
leader changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from redis.asyncio import Redis

from services.gpu_manager.declared_entries import NodeLimits, used_entries
from services.gpu_manager.kinds import KERNELS
from services.gpu_manager.own_chunk import own_entry, own_spec
from services.gpu_manager.serving import Serving
from services.gpu_manager.specs import given_engines, spec_of
from shared.bus.connection import TRANSIENT
from shared.bus.model_services import Declared, count_service_changes, read_declared
from shared.messages.model_services import ServiceOffer, ServingPage
from shared.model_services.entries import FileEntries
from shared.model_services.references import facts_of
from shared.model_services.shown import shown
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)


@dataclass(slots=True)
class DeclaredServices:
    """Applies the declarations of one node."""

    redis: Redis
    serving: Serving
    file: FileEntries
    limits: NodeLimits
    own: frozenset[str] = frozenset()
    """Services of the manager itself, which nobody declares."""
    change: int = -1
    """Number of the last change that was applied; -1: nothing was read."""
    problems: dict[str, str] = field(default_factory=dict)
    _declared: Mapping[str, Declared] = field(default_factory=dict)

    async def refresh(self) -> None:
        """Apply what was changed since the last call. O(1) without a change and without problems."""
        if await count_service_changes(self.redis) != self.change:
            self.change, self._declared = await read_declared(self.redis)
        elif not self.problems:
            return
        self._apply()

    async def run(self, every_s: Seconds) -> None:
        """Refresh until cancelled. Without Valkey, the services stay as they are."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.refresh()
            except TRANSIENT as error:
                _log.warning("declarations_not_read", error=str(error))

    def _apply(self) -> None:
        before = {name: entry for name, entry in self.serving.declared.items() if name not in self.own}
        entries, problems = used_entries(self.file, self._declared, self.limits, before)
        news = problems != self.problems
        self.problems = problems
        for name in before.keys() - entries.keys():
            self.serving.remove_service(name)
        for name, entry in entries.items():
            if before.get(name) != entry:
                self.serving.set_service(name, entry, spec_of(name, entry))
                for instance in given_engines(name, entry):
                    self.serving.expect(instance)
        if self.own:
            awake_gb = (gb for entry in entries.values() for gb in entry.awake_gb_by.values())
            kernels = own_entry(self.limits.device_gb, awake_gb)
            if self.serving.declared.get(KERNELS) != kernels:
                self.serving.set_service(KERNELS, kernels, own_spec(kernels))
        if before != entries or news:
            _log.info("services_applied", change=self.change, services=sorted(entries))
        for name, why in sorted(problems.items()) if news else ():
            _log.warning("service_unusable", service=name, why=why)
        self.serving.changed("")

    def completed(self, page: ServingPage) -> ServingPage:
        """Return the node's page with what REST shows of its declarations."""
        offers = {name: self._offer(name, offer) for name, offer in page.services.items()}
        return msgspec.structs.replace(
            page,
            services=offers,
            file={name: facts_of(entry) for name, entry in self.file.entries.items()},
            wrong=sorted(self.file.problems),
            problems=dict(self.problems),
            allows_commands=self.limits.allow_commands,
            change=max(0, self.change),
        )

    def _offer(self, name: str, offer: ServiceOffer) -> ServiceOffer:
        entry, declared = self.serving.declared[name], self._declared.get(name)
        declaration = None if declared is None or entry == self.file.entries.get(name) else declared.declaration
        reference = None if declaration is None else declaration.reference
        return msgspec.structs.replace(
            offer,
            source="file" if declaration is None else "rest",
            refers_to="" if reference is None else reference.entry,
            shown=shown(entry, with_commands=self.limits.allow_commands),
        )
