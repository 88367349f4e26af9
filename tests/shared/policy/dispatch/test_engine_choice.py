"""Degree, order and chunk of calls of model services, against brute force over all small cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

import pytest
from msgspec.structs import replace

from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.service_stimuli import ServicesReported
from shared.policy.dispatch.stimuli import AttemptsEnded, InventoryReported, NodeJoined, RequestsSubmitted
from shared.policy.elastic.scheduling import ElasticRules
from shared.policy.model.chunks import Chunk, ServedModel
from shared.policy.model.elasticity import Elasticity
from shared.policy.model.formulation import Command, Grant, Work
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.policy.resources.chunks import GPUS
from tests.shared.policy.strategies import request, work

SPEED = Elasticity("amdahl", serial=0.1)
SINGLE_S = 4.0
SLOW: Mapping[int, float] = {1: 2.0, 2: 1.0, 4: 0.5}
FREE: Mapping[int, float] = {1: 0.0, 2: 0.0, 4: 0.0}
COPIED: Mapping[int, float] = {1: 3.0, 2: 1.5, 4: 0.75}
"""Evictions that copy weights to host memory, as vLLM's level 1 does."""
Held = Mapping[Chunk, str]


@dataclass(frozen=True)
class Times:
    restore_s: Mapping[int, float]
    evict_s: Mapping[int, float]
    asleep_s: Mapping[str, Mapping[Chunk, float]] = field(default_factory=dict)
    """Service -> chunk where an engine of it sleeps whenever it is not resident -> seconds of its restore."""

    def swap_s(self, held: Held, chunk: Chunk, service: str) -> float:
        """Seconds until a chunk executes a service: what overlaps leaves at the same time, then it is restored."""
        if held.get(chunk) == service:
            return 0.0
        evict_s = max((self.evict_s[one.size] for one in held if one.overlaps(chunk)), default=0.0)
        return evict_s + self.asleep_s.get(service, {}).get(chunk, self.restore_s[chunk.size])


ALL = (Times(FREE, FREE), Times(SLOW, FREE), Times(SLOW, COPIED))
ASLEEP: Mapping[str, Mapping[Chunk, float]] = {
    "A": {Chunk(1, 1): 0.25, Chunk(0, 2): 0.0},
    "B": {Chunk(0, 1): 0.5, Chunk(2, 2): 0.25},
}
SLEEPING = Times(SLOW, FREE, ASLEEP)
PRICED = ((104, 1.013), (146, 1.25), (156, 1.12))
"""With a price on GPUs for calls that may arrive, for the same times: least number of the 168 cases with the least
possible sum of ACT, and largest sum / least sum (measured: see ADR 0082)."""


def degrees_of(gpus: int) -> tuple[int, ...]:
    return tuple(size for size in (1, 2, 4) if size <= gpus)


def after(held: Held, chunk: Chunk, service: str) -> dict[Chunk, str]:
    """A GPU has the memory of one engine."""
    return {**{one: name for one, name in held.items() if not one.overlaps(chunk)}, chunk: service}


def least_s(services: tuple[str, ...], gpus: int, times: Times, held: Held) -> float:
    """Least sum of ACT over all orders, degrees and chunks; all calls arrive at 0."""

    def ways(left: tuple[str, ...], free_s: tuple[float, ...], held: Held) -> Iterator[float]:
        if not left:
            yield 0.0
        for at, service in enumerate(left):
            if service in left[:at]:
                continue
            for size in degrees_of(gpus):
                for chunk in (Chunk(first, size) for first in range(0, gpus, size)):
                    cost_s = times.swap_s(held, chunk, service)
                    end_s = max(free_s[gpu] for gpu in chunk.gpus) + cost_s + SPEED.duration(SINGLE_S, size)
                    ends_s = tuple(end_s if gpu in chunk.gpus else free_s[gpu] for gpu in range(gpus))
                    rest = ways((*left[:at], *left[at + 1 :]), ends_s, after(held, chunk, service))
                    yield end_s + min(rest)

    return min(ways(services, (0.0,) * gpus, held))


def chosen_s(services: tuple[str, ...], gpus: int, times: Times, held: Held, config: DispatchConfig) -> float:
    """Sum of ACT of what the dispatcher grants."""
    dispatcher, degrees = Dispatcher(specs={"gpus": GPUS}, config=config), degrees_of(gpus)
    now, total_s, running, service_of = 0.0, 0.0, list[tuple[float, Grant]](), dict[str, str]()

    def begin(commands: list[Command], held: Held) -> Held:
        for one in commands:
            if isinstance(one, Grant):
                chunk, service = Chunk(one.numbers[0], len(one.numbers)), service_of[one.action]
                cost_s = times.swap_s(held, chunk, service)
                running.append((now + cost_s + SPEED.duration(SINGLE_S, chunk.size), one))
                held = after(held, chunk, service)
        return held

    dispatcher.handle(0.0, NodeJoined("a", "1", "cpu", {"gpus": gpus}, frozenset({"run"})))
    served = {
        name: ServedModel(
            degrees,
            1,
            80.0,
            frozenset(one for one in held if held[one] == name),
            restore_s=times.restore_s,
            evict_s=times.evict_s,
            asleep=times.asleep_s.get(name, {}),
        )
        for name in "AB"
    }
    dispatcher.handle(0.0, ServicesReported("a", "1", "gpus", served, (80.0,) * gpus), InventoryReported("a", "1", {}))
    requests = []
    for at, service in enumerate(services):
        service_of[f"r{at}"] = service
        requests.append(request(f"r{at}", elastic(service, degrees), at_s=0.0))
    held = begin(dispatcher.handle(0.0, RequestsSubmitted(tuple(requests))), held)
    while running:
        running.sort(key=lambda one: (one[0], one[1].action), reverse=True)
        now, one = running.pop()
        total_s += now
        ended = Ended(one.action, "a", one.attempt, 0, AttemptResult("ok", True), 0.0, 1.0, one.units)
        held = begin(dispatcher.handle(now, AttemptsEnded((ended,))), held)
        dispatcher.check()
    assert not dispatcher.cluster.queues.queued, "all were granted"
    return total_s


def elastic(service: str, degrees: tuple[int, ...]) -> Work:
    stage = replace(work("gpus@cpu", {"gpus": 1}), service=service, duration_s=SINGLE_S)
    return replace(stage, amounts=degrees, elasticity=SPEED) if len(degrees) > 1 else stage


def cases(times: Times) -> Iterator[tuple[tuple[str, ...], int, Times, Held]]:
    for gpus, count in product((2, 4), (1, 2, 3)):
        free = [Chunk(first, size) for size in degrees_of(gpus) for first in range(0, gpus, size)]
        for services in product("AB", repeat=count):
            for held in ({}, *({chunk: "A"} for chunk in free)):
                yield services, gpus, times, held


@pytest.mark.parametrize("times", [*ALL, SLEEPING])
def test_the_sum_of_act_is_the_least_in_all_small_cases(times: Times) -> None:
    """Without a price for later arrivals, and without turns."""
    config = DispatchConfig(swap_wait_s=1000.0, elastic=ElasticRules(rule="paper"))
    found = [(chosen_s(*one, config), least_s(*one), one) for one in cases(times)]
    assert len(found) == 168
    assert [one for chosen, least, one in found if abs(chosen - least) > 1e-9] == []


@pytest.mark.parametrize(("times", "bounds"), list(zip(ALL, PRICED, strict=True)))
def test_the_price_of_later_arrivals_costs_little_if_none_arrive(times: Times, bounds: tuple[int, float]) -> None:
    optimal, most = bounds
    ratios = [(chosen_s(*one, DispatchConfig()) / least_s(*one), one) for one in cases(times)]
    worst, case = max(ratios, key=lambda one: one[0])
    assert min(ratio for ratio, _ in ratios) > 1.0 - 1e-9, "no choice is better than brute force"
    assert worst <= most + 1e-9, case
    assert sum(ratio < 1.0 + 1e-9 for ratio, _ in ratios) >= optimal
