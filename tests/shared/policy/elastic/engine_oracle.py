"""Oracle of engine plans: every order, degree and chunk of a few calls on small nodes, in plain Python. And cases."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shared.policy.elastic.engine_loops import MOST_OPTIONS
from shared.policy.elastic.engine_plan import MOST_PLANNED, EnginePlan, PlannableCall, PlannedPlace
from shared.policy.model.chunks import SIZES, Chunk, ServedModel
from shared.policy.resources.engine_records import (
    ENGINE_COLUMNS,
    MOST_SLOTS,
    USE_COLUMNS,
    EngineRecords,
    floats,
    service_row,
)
from shared.policy.resources.restore_credits import NO_CREDITS

Key = tuple[int, int, int]
"""Service, first GPU and size of an engine."""


class Engine(NamedTuple):
    """A resident engine."""

    key: Key
    gb: float
    evict_s: float
    ready_s: float
    slots: tuple[float, ...]
    """Seconds until each slot is free."""


class Node(NamedTuple):
    """State of one node in a plan; seconds from the time of the plan."""

    gb: tuple[float, ...]
    free_s: tuple[float, ...]
    """By GPU, seconds until it is free."""
    held: tuple[Key | None, ...]
    """By GPU, the engine that uses it and can be joined."""
    engines: tuple[Engine, ...]
    """Most recent first."""
    grantable: int
    """GPUs that may be granted at 0."""


State = tuple[Node, ...]


class Option(NamedTuple):
    """One call at one place of a state."""

    place: PlannedPlace
    cost: float
    end_s: float
    key: Key
    state: State


def options(state: State, call: PlannableCall, price: float) -> Iterator[Option]:
    """Yield every place of a call, each as early as the state permits."""
    for index, node in enumerate(state):
        if not call.accepted[index]:
            continue
        rows = floats([call.rows[index]]).reshape(len(SIZES), -1)
        for size, lasts_s, credit_s, row in zip(SIZES, call.lasts_s, call.credits_s, rows, strict=True):
            allowed, cold_s, gb, unusable, slots, evict_s = map(float, row[:6])
            for first in range(0, len(node.gb) - size + 1, size):
                if not allowed or math.isinf(lasts_s) or int(unusable) >> first // size & 1:
                    continue
                asleep_s = float(row[7 + first // size])
                restore_s = cold_s if asleep_s < 0.0 else asleep_s
                new = Engine((call.service, first, size), gb, evict_s, 0.0, (0.0,) * int(slots))
                found = _take(node, new, restore_s, float(lasts_s), call.sharers, price, float(credit_s))
                if found:
                    begin_s, end_s, cost, after = found
                    place = PlannedPlace(begin_s, index, first, size)
                    yield Option(place, cost, end_s, new.key, (*state[:index], after, *state[index + 1 :]))


def _take(
    node: Node, new: Engine, restore_s: float, lasts_s: float, sharers: int, price: float, credit_s: float
) -> tuple[float, float, float, Node] | None:
    """Return begin, end, cost and the state afterwards, if the engine can run a call."""
    _, first, size = new.key
    gpus = range(first, first + size)
    free_s = max(node.free_s[gpu] for gpu in gpus)
    others = [one for one in node.engines if one.key != new.key]
    resident = [one for one in node.engines if one.key == new.key]
    if resident and all(node.held[gpu] == new.key for gpu in gpus):
        begin_s = min(resident[0].slots)
        if begin_s < free_s:
            end_s = max(begin_s, resident[0].ready_s) + lasts_s
            cost = end_s + price * size * lasts_s / len(new.slots)
            used = resident[0]._replace(slots=(*sorted(resident[0].slots)[1:], end_s))
            return begin_s, end_s, cost, _used(node, used, others, max(free_s, end_s), node.grantable)
    begin_s = free_s
    grantable = node.grantable - (size if begin_s == 0 else 0)
    if grantable < 0:
        grantable, begin_s = node.grantable, min((end_s for end_s in node.free_s if end_s), default=math.inf)
    if math.isinf(begin_s):
        return None
    idle = sum(begin_s - node.free_s[gpu] for gpu in gpus)
    loads_s = 0.0
    if not resident:
        staying = stay(node, new, others)
        loads_s = restore_s + max((one.evict_s for one in others if one not in staying), default=0.0)
        others = staying
    ready_s = max(resident[0].ready_s if resident else 0.0, begin_s + loads_s)
    end_s = ready_s + lasts_s
    shared = min(len(new.slots), sharers)
    cost = end_s + price * (idle + size * (loads_s / sharers + lasts_s / shared))
    cost -= min(credit_s, loads_s + price * size * loads_s / sharers)
    used = new._replace(ready_s=ready_s, slots=(end_s, *[begin_s] * (len(new.slots) - 1)))
    return begin_s, end_s, cost, _used(node, used, others, end_s, grantable)


def stay(node: Node, new: Engine, others: Sequence[Engine]) -> list[Engine]:
    """Return the engines that stay beside a new one: the most recent ones as far as memory suffices."""
    gpus = range(new.key[1], new.key[1] + new.key[2])
    left = {gpu: node.gb[gpu] - new.gb for gpu in gpus}
    staying = []
    for one in others:
        shared = [gpu for gpu in gpus if one.key[1] <= gpu < one.key[1] + one.key[2]]
        if all(left[gpu] >= one.gb for gpu in shared):
            staying.append(one)
            left.update({gpu: left[gpu] - one.gb for gpu in shared})
    return staying


def _used(node: Node, used: Engine, others: Sequence[Engine], until_s: float, grantable: int) -> Node:
    _, first, size = used.key
    free_s, held = list(node.free_s), list(node.held)
    free_s[first : first + size] = [until_s] * size
    held[first : first + size] = [used.key] * size
    return Node(node.gb, tuple(free_s), tuple(held), (used, *others), grantable)


def cheapest(state: State, calls: Sequence[PlannableCall], price: float) -> float:
    """Return the least sum of costs of all plans whose begins ascend; infinity: there is no plan."""

    def rest(state: State, left: tuple[int, ...], begin_s: float, spent: float, best: float) -> float:
        if not left:
            return min(spent, best)
        for index in left:
            others = tuple(other for other in left if other != index)
            for one in options(state, calls[index], price):
                if one.place.begin_s >= begin_s and spent + one.cost < best:
                    best = rest(one.state, others, one.place.begin_s, spent + one.cost, best)
        return best

    return rest(state, tuple(range(len(calls))), 0.0, 0.0, math.inf)


class Replay(NamedTuple):
    """A plan in the model."""

    cost: float
    uses: tuple[Option, ...]
    state: State


def replays(state: State, calls: Sequence[PlannableCall], places: Sequence[PlannedPlace], price: float) -> list[Replay]:
    """Return the plan in every order in which its begins ascend and are those of the model."""
    found = []
    for order in itertools.permutations(range(len(calls))):
        begins = [places[index].begin_s for index in order]
        if begins == sorted(begins):
            now, uses = state, []
            for index in order:
                step = [one for one in options(now, calls[index], price) if same(one.place, places[index])]
                if not step:
                    break
                uses.append(step[0])
                now = step[0].state
            else:
                found.append(Replay(sum(one.cost for one in uses), tuple(uses), now))
    return found


def same(one: PlannedPlace, other: PlannedPlace) -> bool:
    return one[1:] == other[1:] and math.isclose(one.begin_s, other.begin_s, abs_tol=1e-6)


# ---- cases ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Nodes and calls, for the plan and for the model."""

    seed: int
    now: float
    records: list[EngineRecords]
    calls: list[PlannableCall]
    state: State
    price: float

    def plan(self, together: int = MOST_PLANNED) -> EnginePlan:
        return EnginePlan(self.records, self.now, together)


def recorded(node: Node, now: float, rng: random.Random, late: float = 0.0) -> EngineRecords:
    """Return the records of a node. With the probability `late`, an end is overdue by as much as the model waits."""

    def end(seconds: float) -> float:
        if seconds in (0.0, math.inf):
            return seconds or -math.inf
        return now + seconds * (-1 if rng.random() < late else 1)

    count = len(node.engines)
    rows = [[0.0] * ENGINE_COLUMNS for _ in range(count + rng.randrange(3))]
    row_of = dict(zip((one.key for one in node.engines), rng.sample(range(len(rows)), count), strict=True))
    for one, ago_s in zip(node.engines, sorted(rng.sample(range(100), count)), strict=True):
        slots = sum(seconds < math.inf for seconds in one.slots)
        since_s = now + (one.ready_s or -rng.randrange(100))
        rows[row_of[one.key]] = [*one.key, one.gb, one.evict_s, slots, since_s, now - ago_s]
    values = [*node.gb, *[now - rng.randrange(100) for _ in node.gb]]
    uses = list[float]()
    for one in node.engines:
        if one.key in node.held:
            ends = sorted(end(seconds) for seconds in one.slots)
            ends += [math.inf] * (MOST_SLOTS - len(ends))
            until_s = max(each for each in ends if each < math.inf)
            uses += [*one.key[1:], row_of[one.key], until_s, *ends]
    for gpu, (free_s, held) in enumerate(zip(node.free_s, node.held, strict=True)):
        if not held and free_s:
            uses += [gpu, 1, -1, end(free_s), *[math.inf] * MOST_SLOTS]
    counts = len(node.gb), count, node.grantable, len(uses) // USE_COLUMNS, len(rows)
    own = np.array([*counts, *values, *uses, *itertools.chain(*rows)], np.float64)
    return EngineRecords(len(node.gb), count, 0, 0, own.tobytes())


def random_case(seed: int, late: float = 0.0) -> Case:
    """Return one or two nodes of 1 to 4 GPUs, up to three services, and calls of them: few enough for all options."""
    rng = random.Random(seed)
    now = float(rng.randrange(1000, 2000))
    services = rng.sample(range(1, 1 << 53), rng.randint(1, 3))
    served, state = list[dict[int, ServedModel]](), list[Node]()
    for _ in range(rng.randint(1, 2)):
        served.append({service: _model(rng) for service in services})
        state.append(_node(rng.choice([1, 2, 2, 2, 3, 3, 4, 4, 8]), served[-1], rng))
    chunks = sum(len(node.gb) // size for node in state for size in SIZES)
    calls = list[PlannableCall]()
    for _ in range(rng.randint(1, min(4, max(1, MOST_OPTIONS // chunks)))):
        service = rng.choice(services)
        lasts_s = [rng.randint(4, 160) / 4 if rng.random() < 0.8 else math.inf for _ in SIZES]
        rows = [service_row(models[service]) for models in served]
        accepted = [rng.random() < 0.85 for _ in state]
        calls.append(
            rng.choice(calls)
            if calls and rng.random() < 0.2
            else PlannableCall(service, lasts_s, rows, accepted, 0, NO_CREDITS)
        )
    waiting = {service: sum(one.service == service for one in calls) + rng.randint(0, 2) for service in services}
    paid = {service: [rng.choice([0.0, 0.0, 1.5, 8.0, 40.0]) for _ in SIZES] for service in services}
    calls = [one._replace(sharers=waiting[one.service], credits_s=paid[one.service]) for one in calls]
    records = [recorded(node, now, rng, late) for node in state]
    return Case(seed, now, records, calls, tuple(state), rng.choice([0.0, 0.25, 1.5]))


def _model(rng: random.Random) -> ServedModel:
    degrees = tuple(size for size in SIZES if rng.random() < 0.7)
    return ServedModel(
        degrees,
        concurrency=rng.choice([1, 3]),
        awake_gb=float(rng.choice([15, 30, 45, 70])),
        awake_gb_by={size: float(rng.choice([15, 30, 45, 90])) for size in degrees if rng.random() < 0.3},
        unusable=frozenset(Chunk(rng.randrange(4 // size) * size, size) for size in (1, 2, 4) if rng.random() < 0.2),
        restore_s={size: float(rng.randint(0, 12)) for size in degrees},
        evict_s={size: float(rng.randint(0, 6)) for size in degrees if rng.random() < 0.7},
        asleep={
            Chunk(first, size): float(rng.choice([0, 1, 2, 15]))
            for size in degrees
            for first in range(0, 8, size)
            if rng.random() < 0.2
        },
    )


def _node(gpus: int, models: dict[int, ServedModel], rng: random.Random) -> Node:
    """Return a node whose resident engines have memory; some GPUs are used, by engines or by something else."""
    gb = tuple(float(rng.choice([80, 80, 100])) for _ in range(gpus))
    engines = list[Engine]()
    for _ in range(rng.randint(0, 8)):
        service = rng.choice(list(models))
        model, size = models[service], rng.choice([size for size in SIZES if size <= gpus])
        key = (service, rng.randrange(gpus // size) * size, size)
        one = Engine(key, model.gb(size), model.evict_s.get(size, 0.0), 0.0, (0.0,) * model.concurrency)
        stays = stay(Node(gb, (), (), (), 0), one, engines) == engines and one.gb <= min(gb)
        if stays and size in model.degrees and all(other.key != key for other in engines):
            engines.append(one)
    free_s, held = [0.0] * gpus, list[Key | None]([None] * gpus)
    for at, one in enumerate(engines):
        _, first, size = one.key
        if rng.random() < 0.4 and not any(free_s[first : first + size]):
            ends = [float(end_s) for end_s in rng.sample(range(5, 31), rng.randint(1, len(one.slots)))]
            free_s[first : first + size] = [max(ends)] * size
            if rng.random() < 0.8:
                held[first : first + size] = [one.key] * size
                slots = (*ends, *[0.0] * (len(one.slots) - len(ends)))
                engines[at] = one._replace(slots=slots, ready_s=rng.choice([0.0, 0.0, 1.0, 4.0]))
    for gpu in range(gpus):
        if not free_s[gpu] and rng.random() < 0.2:
            free_s[gpu] = rng.choice([math.inf, float(rng.randint(1, 20))])
    free = free_s.count(0.0)
    grantable = free if rng.random() < 0.7 else rng.randint(0, free)
    return Node(gb, tuple(free_s), tuple(held), tuple(engines), grantable)
