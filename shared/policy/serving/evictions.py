"""Choice of victims and of their sleep levels: pure functions of amounts and costs.

Laws (tests/shared/policy/serving/test_evictions.py, against brute force over all subsets and levels):
  - victims: the set that frees enough and spares the last candidate that can be spared, then the one before it, and so
    on. The caller orders the candidates by how willingly they are evicted;
  - levels: the least sum of evict + restore times with which the victims free enough device memory and fit into the
    free host memory. Old sleepers are stopped to free host memory if that makes the sum less, the cost of their next
    load included;
  - `cold` frees the most and needs no host memory, so each choice of victims has levels.
The paper evicts in LRU order (ARL-Tangram 5.3) and has one level.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

from shared.policy.model.chunks import Chunk
from shared.policy.serving.model import InstanceId, Level

ROUNDING: Final = 1e-6
"""GB that count as rounding."""
MOST_VISITED: Final = 4096
"""Bound of the search for levels, in tried levels: about 5 ms. All choices of six victims are fewer. If it ends the
search, the best levels so far are used, which free enough, but need not be the cheapest."""


class LevelOption(NamedTuple):
    """One level to which a victim can be evicted."""

    level: Level
    cost_s: float
    """Evict time + time of the next restore, compared with leaving it as it is."""
    frees_gb: float
    """Device memory on each GPU of the victim."""
    host_gb: float = 0.0
    """Host memory that it uses afterwards."""


class Candidate(NamedTuple):
    """Instance that can be evicted."""

    instance: InstanceId
    gpus: range
    """Its GPUs that the wanted chunk has too, by their places there."""
    options: tuple[LevelOption, ...]
    """`cold` is one of them: it frees the most on each GPU, and uses no host memory."""

    @property
    def cold(self) -> LevelOption:
        """Return the option that frees the most."""
        return next(option for option in self.options if option.level == "cold")


class SleepingEngine(NamedTuple):
    """Sleeping instance that can be stopped for its host memory."""

    instance: InstanceId
    host_gb: float
    cost_s: float
    """Time to stop it + time by which its next load takes longer than its restore."""


class EvictionPlan(NamedTuple):
    """Evictions that make room. `stopped` end first: evictions may need their host memory."""

    levels: tuple[tuple[InstanceId, Level], ...]
    stopped: tuple[InstanceId, ...] = ()
    cost_s: float = 0.0
    host_gb: float = 0.0
    """Host memory that the victims use afterwards."""


def shared_gpus(chunk: Chunk, wanted: Chunk) -> range:
    """Return the GPUs that two chunks share, by their places in the second one."""
    begin = chunk.first - wanted.first
    return range(max(begin, 0), min(begin + chunk.size, wanted.size))


def choose_victims(needs_gb: Sequence[float], frees: Sequence[tuple[range, float]]) -> list[int] | None:
    """Return the victims that free `needs_gb` on each GPU, by their places; None if all candidates together do not.

    Args:
        needs_gb: memory to free by GPU of the wanted chunk; not positive: none.
        frees: by candidate, in the order in which they are given up, its GPUs as in `Candidate`, and the memory that it
            frees on each of them when it is cold.

    O(GPUs + GPUs of the candidates).
    """
    spare = [-need for need in needs_gb]
    for gpus, gb in frees:
        for gpu in gpus:
            spare[gpu] += gb
    if min(spare, default=0.0) < -ROUNDING:
        return None
    chosen = []
    for at in range(len(frees) - 1, -1, -1):
        gpus, gb = frees[at]
        begin, end = gpus.start, gpus.stop
        if min(spare[begin:end], default=gb) - gb >= -ROUNDING:
            spare[begin:end] = [one - gb for one in spare[begin:end]]
        else:
            chosen.append(at)
    return chosen[::-1]


def choose_levels(
    needs_gb: Sequence[float],
    victims: Sequence[Candidate],
    host_free_gb: float,
    sleepers: Sequence[SleepingEngine] = (),
) -> EvictionPlan:
    """Return the cheapest levels of victims that free enough when all are cold.

    Args:
        needs_gb: as for `choose_victims`.
        victims: its result.
        host_free_gb: host memory that no sleeper uses.
        sleepers: in the order in which they are given up: only the first of them are stopped.

    O(MOST_VISITED x sleepers that are tried) at worst, O(victims x levels) if the cheapest levels fit.
    """
    least_s, levels, host_gb = _cheapest(needs_gb, victims, inf)
    if host_gb <= host_free_gb + ROUNDING:
        return _plan(victims, levels, (), least_s, host_gb)
    best: EvictionPlan | None = None
    extra_s = 0.0
    for count in range(len(sleepers) + 1):
        if count:
            host_free_gb += sleepers[count - 1].host_gb
            extra_s += sleepers[count - 1].cost_s
        if best is not None and best.cost_s <= least_s + extra_s:
            break  # more sleepers cost at least as much
        cost_s, levels, host_gb = _cheapest(needs_gb, victims, host_free_gb)
        if best is None or cost_s + extra_s < best.cost_s:
            best = _plan(victims, levels, sleepers[:count], cost_s + extra_s, host_gb)
    assert best is not None
    return best


def _plan(
    victims: Sequence[Candidate],
    levels: Sequence[Level],
    stopped: Sequence[SleepingEngine],
    cost_s: float,
    host_gb: float,
) -> EvictionPlan:
    chosen = tuple((victim.instance, level) for victim, level in zip(victims, levels, strict=True))
    return EvictionPlan(chosen, tuple(sleeper.instance for sleeper in stopped), cost_s, host_gb)


def _cheapest(
    needs_gb: Sequence[float], victims: Sequence[Candidate], host_gb: float
) -> tuple[float, Sequence[Level], float]:
    """Return the least cost, its levels and their host memory. Of equal costs a sleep is preferred.

    The cheapest level of each victim is the answer if these free enough and fit. Otherwise a depth-first search with
    bounds finds it.
    """
    first = [min(victim.options, key=_by_cost) for victim in victims]
    used_gb = sum(option.host_gb for option in first)
    left_gb = list(needs_gb)
    for victim, option in zip(victims, first, strict=True):
        for gpu in victim.gpus:
            left_gb[gpu] -= option.frees_gb
    if used_gb <= host_gb + ROUNDING and max(left_gb, default=0.0) <= ROUNDING:
        return sum(option.cost_s for option in first), [option.level for option in first], used_gb
    return _searched(needs_gb, victims, [sorted(victim.options, key=_by_cost) for victim in victims], host_gb)


def _by_cost(option: LevelOption) -> tuple[float, Level]:
    return option.cost_s, option.level


def _searched(
    needs_gb: Sequence[float], victims: Sequence[Candidate], options: Sequence[Sequence[LevelOption]], host_gb: float
) -> tuple[float, Sequence[Level], float]:
    rest_s = [0.0]
    most = [tuple(0.0 for _ in needs_gb)]
    for victim, of_victim in zip(reversed(victims), reversed(options), strict=True):
        rest_s.append(rest_s[-1] + of_victim[0].cost_s)
        most.append(_changed(most[-1], victim.gpus, victim.cold.frees_gb))
    rest_s.reverse()
    most.reverse()
    best_s, best, best_gb = inf, tuple[Level, ...](), 0.0
    visited = 0
    stack: list[tuple[int, float, tuple[float, ...], float, tuple[Level, ...]]] = [(0, 0.0, tuple(needs_gb), 0.0, ())]
    while stack and visited < MOST_VISITED:
        number, cost_s, needs, used_gb, levels = stack.pop()
        if cost_s + rest_s[number] >= best_s:
            continue
        if number == len(victims):
            best_s, best, best_gb = cost_s, levels, used_gb
            continue
        for option in reversed(options[number]):
            visited += 1
            left = _changed(needs, victims[number].gpus, -option.frees_gb)
            possible = all(need <= later + ROUNDING for need, later in zip(left, most[number + 1], strict=True))
            more_gb = used_gb + option.host_gb
            if possible and more_gb <= host_gb + ROUNDING:
                stack.append((number + 1, cost_s + option.cost_s, left, more_gb, (*levels, option.level)))
    if best_s == inf:  # the search was cut short
        return sum(victim.cold.cost_s for victim in victims), ["cold" for _ in victims], 0.0
    return best_s, best, best_gb


def _changed(by_gpu: tuple[float, ...], gpus: range, change: float) -> tuple[float, ...]:
    return tuple(gb + change if gpu in gpus else gb for gpu, gb in enumerate(by_gpu))
