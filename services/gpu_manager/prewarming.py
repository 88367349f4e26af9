"""Restores of model services before the first request of a batch, as the planner asks for them (ADR 0075).

The planner repeats a wish (`ResidencyWanted`) until the first request has come. Laws
(tests/services/gpu_manager/test_prewarming.py, tests/e2e/test_prewarmed_models.py):
  - a service is restored only on GPUs that this node owns and that no action uses (`to_prewarm`);
  - a wish is met once: a service that was evicted again for an action is not restored again without another wish;
  - a met wish counts until its time is over (`FRESH_S`): until then no restore for another wish evicts its engine;
  - it waits for less than `max_wait_s`, so that it never has a holder of an action drained.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from services.gpu_manager.engine_use import NotServed
from services.gpu_manager.metrics import PREWARMS
from services.gpu_manager.serving import Serving
from shared.bus.tail import Tail
from shared.messages.targets import ResidencyWanted
from shared.policy.serving.model import InstanceId
from shared.policy.serving.prewarming import is_ready, to_prewarm
from shared.runtime import log
from shared.runtime.clock import Clock
from shared.runtime.units import Seconds

_log = log.get(__name__)

TICK_S: Final[Seconds] = 0.2
FRESH_S: Final[Seconds] = 60.0
"""Time for which a wish counts."""
PAUSE_S: Final[Seconds] = 5.0
"""Time from a restore that has failed to the next one of its service."""
MOST_WISHES: Final = 256


@dataclass(slots=True)
class _Wish:
    degree: int
    until_s: Seconds
    met: bool = False
    """Its service has become resident, or becomes so: it is not restored again."""
    not_before_s: Seconds = 0.0


@dataclass(slots=True)
class Prewarming:
    """Wishes for the model services of one node, and the restores that meet them."""

    serving: Serving
    pool: str
    usable: Callable[[], Collection[int]]
    """GPUs that may be used."""
    owned: Callable[[], int]
    """GPUs that the node owns."""
    wait_s: Seconds
    """Longest wait of a restore for its turn."""
    clock: Clock
    _wishes: dict[str, _Wish] = field(default_factory=dict)
    """By service, the oldest first."""
    _restores: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def receive(self, message: ResidencyWanted, at: Seconds) -> None:
        """Handle a wish, published at Unix second `at`. Old ones and those of other pools are ignored."""
        entry = self.serving.declared.get(message.service)
        left_s = at + FRESH_S - self.clock.unix()
        if message.pool != self.pool or entry is None or message.degree not in entry.degrees or left_s <= 0:
            return
        until_s = self.clock.monotonic() + min(left_s, FRESH_S)
        known = self._wishes.get(message.service)
        if known is not None:
            known.degree, known.until_s, known.met = message.degree, until_s, False
        elif len(self._wishes) < MOST_WISHES:
            self._wishes[message.service] = _Wish(message.degree, until_s)

    async def follow(self, tail: Tail) -> None:
        """Receive wishes until cancelled."""
        async for entries in tail.batches():
            for entry in entries:
                self.receive(entry.message, entry.at)

    async def run(self) -> None:
        """Meet wishes until cancelled."""
        try:
            while True:
                self.settle()
                await asyncio.sleep(TICK_S)
        finally:
            for task in self._restores.values():
                task.cancel()
            if self._restores:
                await asyncio.wait(self._restores.values())

    def settle(self) -> None:
        """Begin the restores that are possible now. O(wishes x GPUs x instances); nothing without wishes."""
        for service in [service for service, task in self._restores.items() if task.done()]:
            self._restores.pop(service).result()  # raises a bug of ours
        if not self._wishes:
            return
        now, views = self.clock.monotonic(), self.serving.machine.view()
        for service, wish in list(self._wishes.items()):
            if now >= wish.until_s:
                del self._wishes[service]
        ready = {service for service in self._wishes if is_ready(service, views)}
        for service in ready:
            self._wishes[service].met = True
        wanted = {  # ready ones too: their engines are kept
            service: wish.degree
            for service, wish in self._wishes.items()
            if service in ready or (not wish.met and service not in self._restores and now >= wish.not_before_s)
        }
        for instance in to_prewarm(wanted, views, self.usable(), self.owned()):
            self._restores[instance.service] = asyncio.create_task(self._restore(instance), name=f"prewarm {instance}")

    async def _restore(self, instance: InstanceId) -> None:
        holder, deadline = f"prewarm {next(self._numbers)}", self.clock.monotonic() + self.wait_s
        try:
            async with self.serving.using(holder, instance, deadline) as use:
                use.ok = True
                if (wish := self._wishes.get(instance.service)) is not None:
                    wish.met = True
        except NotServed as error:
            PREWARMS.labels("failed").inc()
            _log.warning("model_not_prewarmed", instance=str(instance), reason=error.reason)
            if (wish := self._wishes.get(instance.service)) is not None:
                wish.not_before_s = self.clock.monotonic() + PAUSE_S
        else:
            PREWARMS.labels("ok").inc()
            _log.info("model_prewarmed", instance=str(instance))
