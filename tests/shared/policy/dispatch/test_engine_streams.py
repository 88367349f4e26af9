"""An old elastic call of a model service beside a stream of calls that never ends: it is granted within a bound.

The bound follows from the laws of `engine_choice`, `swaps` and `scheduling_round`:
  1. for `swap_wait_s`, younger calls may be planned before the old one;
  2. then it is planned first, and nothing starts in its place that is not predicted to end before. So what is in its
     way has begun by then, and ends after an eviction, a restore and the longest call at most;
  3. a service that was restored there last has its turn, for `turn_s` from the end of its restore. Calls of this
     service may begin until the end of the turn, and take the longest call at most. Nothing else is restored there.
So it waits for both, an eviction, a restore and the longest call at most, and until the next round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

import pytest

from shared.policy.dispatch.stimuli import ActionCancelled, Stimulus
from shared.policy.model.chunks import SIZES, ServedModel
from shared.policy.model.formulation import Grant, Work
from shared.policy.resources.chunk_choice import CALLS_IN_TURN
from shared.policy.resources.chunk_waits import turn_s
from tests.shared.policy.dispatch.test_engine_places import SPEED, Cluster, call

STEP_S: Final = 0.5
"""Time between two submissions. Each of them is a scheduling round."""
EVICT_S: Final = 1.0
MEMORY_GB: Final = 60.0
"""Memory of an engine: two of them do not fit on one GPU."""


class Engine(NamedTuple):
    service: str
    numbers: tuple[int, ...]
    ready_s: float


@dataclass
class RestoringCluster(Cluster):
    """A cluster whose calls also take the time of evictions and restores."""

    restore_s: float = 0.0
    engines: dict[tuple[str, int], Engine] = field(default_factory=dict)
    """(Node, GPU) -> engine that is resident there."""

    def handle(self, *stimuli: Stimulus) -> list[Grant]:
        granted = super().handle(*stimuli)
        for one in granted:
            end_s, grant = self.running[one.action]
            self.running[one.action] = (end_s + self.swap_s(grant), grant)
        return granted

    def swap_s(self, grant: Grant) -> float:
        """Let the engine of a grant be resident, and return the seconds until it is."""
        service, numbers = self.works[grant.action].service, grant.numbers
        gpus = [(grant.node, number) for number in numbers]
        found = {self.engines[gpu] for gpu in gpus if gpu in self.engines}
        known = next(iter(found), None)
        if known is None or known[:2] != (service, numbers):
            for left in found:
                for number in left.numbers:
                    del self.engines[grant.node, number]
            known = Engine(service, numbers, self.now + (EVICT_S if found else 0.0) + self.restore_s)
            self.engines.update(dict.fromkeys(gpus, known))
        return max(0.0, known.ready_s - self.now)


@dataclass(frozen=True)
class Stream:
    """Calls of these services, in random order."""

    services: tuple[str, ...]
    degrees: tuple[int, ...]
    slots: int = 1
    durations_s: tuple[float, ...] = (3.0,)
    """On one GPU."""
    is_elastic: bool = True
    backlog: int = 12
    """Calls that wait at any time; calls of at most six waiting ones are planned together."""

    @property
    def longest_s(self) -> float:
        return SPEED.duration(max(self.durations_s), self.degrees[0])

    def next_call(self, rng: Random) -> Work:
        service, duration_s = rng.choice(self.services), rng.choice(self.durations_s)
        if not self.is_elastic:
            return call(service, rng.choice(self.degrees), duration_s=duration_s)
        return call(service, *elastic(self.degrees), duration_s=duration_s)


def elastic(degrees: tuple[int, ...]) -> tuple[int, ...]:
    """Degrees of an elastic call, which has two at least. Its service may have one of them."""
    return degrees if len(degrees) > 1 else (degrees[0], 2 * degrees[0])


def up_to(gpus: int) -> tuple[int, ...]:
    return tuple(size for size in SIZES if size <= gpus)


def waited_s(gpus: int, nodes: int, restore_s: float, stream: Stream, old: Work, rng: Random) -> tuple[float, float]:
    """Return how long the call waits beside the stream, and its bound."""
    cluster = RestoringCluster(restore_s=restore_s)
    degrees = {name: set(stream.degrees) for name in stream.services}
    degrees.setdefault(old.service, set()).update(size for size in old.amounts if size <= gpus)
    served = {
        name: ServedModel(
            tuple(sorted(sizes)),
            stream.slots,
            MEMORY_GB,
            restore_s=dict.fromkeys(sizes, restore_s),
            evict_s=dict.fromkeys(sizes, EVICT_S),
        )
        for name, sizes in degrees.items()
    }
    for number in range(nodes):
        cluster.join(f"n{number}", gpus, served)
    waiting = cluster.dispatcher.cluster.queues.queued

    def submit() -> None:
        """Submit calls of the stream until its backlog waits."""
        while len(waiting) < stream.backlog:
            cluster.submit(stream.next_call(rng))

    for _ in range(24):
        submit()
        cluster.go_to(cluster.now + STEP_S)
    cluster.handle(*[ActionCancelled(name, "older than the old call") for name in waiting])
    name, since_s = f"r{len(cluster.works)}", cluster.now
    wait_s, swap_s = cluster.dispatcher.config.swap_wait_s, EVICT_S + restore_s
    bound_s = wait_s + turn_s(wait_s, swap_s) + swap_s + stream.longest_s + STEP_S
    cluster.submit(old)
    while name not in cluster.begun_s and cluster.now < since_s + 2 * bound_s:
        submit()
        cluster.go_to(cluster.now + STEP_S)
    return cluster.begun_s.get(name, cluster.now) - since_s, bound_s


CLUSTERS: Final = {"1 GPU": (1, 1), "2 GPUs": (2, 1), "8 GPUs": (8, 1), "24 GPUs": (8, 3)}
OTHERS: Final = ("B", "C", "D", "E")
DURATIONS_S: Final = (0.3, 1.0, 3.0)


def streams(gpus: int) -> dict[str, Stream]:
    return {
        "others of one degree": Stream(OTHERS, (1,)),
        "others of several degrees": Stream(OTHERS, up_to(gpus), durations_s=DURATIONS_S),
        "another with several slots": Stream(("B",), (1,), 4, (1.0, 3.0)),
        "its own service": Stream(("A",), up_to(gpus), durations_s=DURATIONS_S),
        "its own service with several slots": Stream(("A",), (1,), 4, (1.0, 3.0)),
        "its own service and others": Stream(("A", "B", "C"), up_to(gpus), 2, (1.0, 3.0)),
        "fixed degrees": Stream(OTHERS, up_to(gpus), durations_s=DURATIONS_S, is_elastic=False),
    }


@pytest.mark.parametrize("stream", streams(1))
@pytest.mark.parametrize("restore_s", [2.0, 8.0])
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_an_old_call_is_granted_beside_a_stream(cluster: str, restore_s: float, stream: str) -> None:
    """A restore is shorter or longer than a turn, 5 s. The call may take any degree, or needs all GPUs of a node."""
    gpus, nodes = CLUSTERS[cluster]
    for degrees in dict.fromkeys((up_to(gpus), (gpus,))):
        old = call("A", *elastic(degrees), duration_s=50.0)
        found_s, bound_s = waited_s(gpus, nodes, restore_s, streams(gpus)[stream], old, Random(1))
        assert found_s <= bound_s, degrees


@pytest.mark.parametrize("is_elastic", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_short_calls_with_long_restores_do_not_starve_a_call_of_all_gpus(seed: int, is_elastic: bool) -> None:
    """Without its restore, each of them would end before the other GPU is free."""
    stream = Stream(OTHERS, (1, 2) if is_elastic else (1,), 1, (0.3, 1.0), is_elastic)
    found_s, bound_s = waited_s(2, 1, 8.0, stream, call("A", 2, 4, duration_s=5.0), Random(seed))
    assert found_s <= bound_s


@pytest.mark.parametrize("degrees", [(1, 2), (2,)])
@pytest.mark.parametrize("is_elastic", [True, False])
def test_calls_that_join_engines_do_not_starve_a_call(is_elastic: bool, degrees: tuple[int, ...]) -> None:
    """No GPU is ever free, and on each node a slot is free soon: another node would be reserved in each round."""
    stream = Stream(("B",), (1,), 8, DURATIONS_S, is_elastic)
    found_s, bound_s = waited_s(2, 2, 2.0, stream, call("A", *elastic(degrees), duration_s=5.0), Random(0))
    assert found_s <= bound_s


@pytest.mark.parametrize("callers", [2, 3, 4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_a_stream_of_short_calls_does_not_starve_a_call_that_fits_beside_it(callers: int, seed: int) -> None:
    """Both services stay resident. The stream's calls take one GPU each, and both GPUs are never free together."""
    rng, cluster = Random(seed), Cluster()
    served = {"short": ServedModel((1,), 1, 16.0), "wide": ServedModel((2,), 1, 8.0)}
    cluster.join("n", 2, served, memory_gb=(24.0, 24.0))
    cluster.submit(call("wide", 2, duration_s=1.0))
    cluster.go_to(cluster.now + 2.0)
    asked, began_s = "", cluster.now
    while not asked or asked in cluster.dispatcher.cluster.queues.queued:
        waiting = cluster.dispatcher.cluster.queues.queued
        live = [name for name, one in cluster.works.items() if name in waiting or name in cluster.running]
        for _ in range(callers - sum(cluster.works[name].service == "short" for name in live)):
            cluster.submit(call("short", 1, duration_s=rng.uniform(1.0, 1.5)))
        if not asked and cluster.now >= began_s + 3.0:
            asked, began_s = f"r{len(cluster.works)}", cluster.now
            cluster.submit(call("wide", 2, duration_s=1.0))
        cluster.go_to(cluster.now + 0.05)
        assert cluster.now < began_s + (CALLS_IN_TURN + 2) * 1.5 + 0.05, "a turn, the calls in it, and one round"
