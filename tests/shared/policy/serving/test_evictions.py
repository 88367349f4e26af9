"""Victims and levels against brute force over all subsets and all levels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.model.chunks import Chunk
from shared.policy.serving.evictions import (
    Candidate,
    EvictionPlan,
    LevelOption,
    SleepingEngine,
    choose_levels,
    choose_victims,
)
from shared.policy.serving.model import (
    InstanceId,
    Level,
)

GPUS = 2
ASLEEP: tuple[Level, ...] = ("asleep1", "asleep2")


def name(number: int) -> InstanceId:
    return InstanceId(f"s{number}", Chunk(0, 1))


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    found = []
    for number in range(draw(st.integers(0, 4))):
        begin = draw(st.integers(0, GPUS - 1))
        gpus, frees = range(begin, draw(st.integers(begin + 1, GPUS))), float(draw(st.integers(0, 6)))
        options = [LevelOption("cold", float(draw(st.integers(0, 20))), frees)]
        for level in ASLEEP:
            if draw(st.booleans()):
                kept = max(0.0, frees - float(draw(st.integers(0, 3))))
                options.append(
                    LevelOption(level, float(draw(st.integers(0, 20))), kept, float(draw(st.integers(0, 5))))
                )
        found.append(Candidate(name(number), gpus, tuple(options)))
    return found


NEEDS = st.tuples(*[st.integers(-3, 12).map(float) for _ in range(GPUS)])
SLEEPERS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), max_size=3).map(
    lambda pairs: [SleepingEngine(name(10 + number), float(gb), float(s)) for number, (gb, s) in enumerate(pairs)]
)


def chosen(needs: tuple[float, ...], offered: list[Candidate]) -> list[Candidate] | None:
    places = choose_victims(needs, [(one.gpus, one.cold.frees_gb) for one in offered])
    return None if places is None else [offered[at] for at in places]


def enough(needs: tuple[float, ...], victims: Sequence[Candidate], options: Iterable[LevelOption]) -> bool:
    freed = list(zip(victims, options, strict=True))
    by_gpu = [sum(option.frees_gb for victim, option in freed if gpu in victim.gpus) for gpu in range(GPUS)]
    return all(freed_gb >= need for freed_gb, need in zip(by_gpu, needs, strict=True))


@settings(max_examples=400)
@given(NEEDS, candidates())
def test_victims_are_those_of_brute_force(needs: tuple[float, ...], offered: list[Candidate]) -> None:
    subsets = [[number for number in range(len(offered)) if mask >> number & 1] for mask in range(2 ** len(offered))]
    fitting = []
    for subset in subsets:
        of_subset = [offered[number] for number in subset]
        if enough(needs, of_subset, [one.cold for one in of_subset]):
            fitting.append(subset)
    victims = chosen(needs, offered)
    if not fitting:
        assert victims is None
        return
    spares_last = min(fitting, key=lambda subset: sorted(subset, reverse=True))
    assert victims == [offered[number] for number in spares_last]


@settings(max_examples=400)
@given(NEEDS, candidates(), st.integers(0, 8).map(float), SLEEPERS)
def test_levels_cost_what_brute_force_costs(
    needs: tuple[float, ...], offered: list[Candidate], host_gb: float, sleepers: list[SleepingEngine]
) -> None:
    victims = chosen(needs, offered)
    if victims is None:
        return
    least_s = inf
    for options in product(*[victim.options for victim in victims]):
        if not enough(needs, victims, options):
            continue
        for count in range(len(sleepers) + 1):
            if sum(option.host_gb for option in options) <= host_gb + sum(one.host_gb for one in sleepers[:count]):
                cost_s = sum(option.cost_s for option in options) + sum(one.cost_s for one in sleepers[:count])
                least_s = min(least_s, cost_s)
    plan = choose_levels(needs, victims, host_gb, sleepers)
    check(plan, needs, victims, host_gb, sleepers)
    assert plan.cost_s == least_s


def check(
    plan: EvictionPlan,
    needs: tuple[float, ...],
    victims: list[Candidate],
    host_gb: float,
    sleepers: list[SleepingEngine],
) -> None:
    """A plan frees enough, fits into the host budget, and costs what it says."""
    assert [one for one, _ in plan.levels] == [victim.instance for victim in victims]
    options = [
        next(option for option in victim.options if option.level == level)
        for victim, (_, level) in zip(victims, plan.levels, strict=True)
    ]
    stopped = sleepers[: len(plan.stopped)]
    assert plan.stopped == tuple(sleeper.instance for sleeper in stopped)
    assert enough(needs, victims, options)
    assert sum(option.host_gb for option in options) <= host_gb + sum(sleeper.host_gb for sleeper in stopped)
    assert plan.cost_s == sum(option.cost_s for option in options) + sum(sleeper.cost_s for sleeper in stopped)
    assert plan.host_gb == sum(option.host_gb for option in options)


def test_a_search_that_is_cut_short_still_frees_enough() -> None:
    """Twenty victims whose cheapest levels use too much host memory: 3 ** 20 choices."""
    victims = [
        Candidate(
            name(number),
            range(GPUS),
            (
                LevelOption("cold", 60.0 + number, 6.0),
                LevelOption("asleep1", 1.0 + number % 3, 6.0, 5.0 + number % 4),
                LevelOption("asleep2", 7.0, 5.0, 1.5),
            ),
        )
        for number in range(20)
    ]
    needs = (110.0, 110.0)
    check(choose_levels(needs, victims, 40.0), needs, victims, 40.0, [])


def test_an_old_sleeper_is_stopped_if_that_is_cheaper() -> None:
    victim = Candidate(name(0), range(1), (LevelOption("cold", 60.0, 10.0), LevelOption("asleep1", 4.0, 10.0, 10.0)))
    cheap, dear = SleepingEngine(name(1), 10.0, 20.0), SleepingEngine(name(1), 10.0, 70.0)
    asleep = EvictionPlan(((name(0), "asleep1"),), (name(1),), 24.0, 10.0)
    assert choose_levels((8.0, 0.0), [victim], 5.0, [cheap]) == asleep
    assert choose_levels((8.0, 0.0), [victim], 5.0, [dear]) == EvictionPlan(((name(0), "cold"),), (), 60.0, 0.0)
    assert choose_levels((8.0, 0.0), [victim], 10.0, [cheap]).stopped == ()
