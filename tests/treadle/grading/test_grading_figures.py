"""The report's arithmetic against naive computations of the same."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.api.tasks import StageTemplate
from tests.treadle.grading.answers import answer
from treadle.client.answers import Result
from treadle.grading.resources import PoolUse, added, pools_by_stage, uses_of
from treadle.grading.rewards import rewards_of
from treadle.grading.timing import acts_of, extra_delay_s, stage_acts, time_summary

POOLS = {"compile": "cores@default", "judge": "gpus@big"}
grid = st.integers(0, 40).map(lambda ticks: ticks / 4)
"""Times that floating point holds exactly, so that equality is meant."""


@st.composite
def batches(draw: st.DrawFn) -> list[Result]:
    def one(number: int) -> Result:
        names = draw(st.sampled_from([["compile"], ["compile", "judge"]]))
        legs = [(name, draw(grid), draw(grid)) for name in names]
        return answer(str(number), arrived=draw(grid), stages=legs, overhead=draw(grid), units=draw(st.integers(1, 4)))

    return [one(number) for number in range(draw(st.integers(1, 12)))]


@settings(deadline=None)
@given(batches())
def test_a_dedicated_pool_is_sized_for_the_busiest_moment(answers: list[Result]) -> None:
    legs = []
    for each in answers:
        at = each.arrived_at
        for stage in each.stages:
            legs.append((POOLS[stage.name], stage.units, at, at + stage.execution_s))
            at += stage.execution_s
    first, last = min(leg[2] for leg in legs), max(leg[3] for leg in legs)
    uses = {use.pool: use for use in uses_of(answers, POOLS)}
    assert uses.keys() == {leg[0] for leg in legs}
    for pool, use in uses.items():
        own = [leg for leg in legs if leg[0] == pool]
        busiest = max(sum(units for _, units, start, end in own if start <= moment < end) for _, _, moment, _ in own)
        assert use.zero_queue_units == busiest
        assert use.dedicated_unit_s == busiest * (last - first)
        assert use.used_unit_s == sum(units * (end - start) for _, units, start, end in own)
        assert use.used_unit_s <= use.dedicated_unit_s


@settings(deadline=None)
@given(batches())
def test_extra_delay_is_the_end_less_the_earliest_end(answers: list[Result]) -> None:
    acts = [each.act for each in answers]
    ideal = max(each.arrived_at + act.execution_s for each, act in zip(answers, acts, strict=True) if act)
    actual = max(each.arrived_at + act.total_s for each, act in zip(answers, acts, strict=True) if act)
    assert extra_delay_s(answers) == actual - ideal >= 0


def test_no_answers_have_no_delay_and_no_use() -> None:
    refused = answer("a", stages=[], ended="refused", mask=True)
    assert extra_delay_s([refused]) == 0
    assert uses_of([refused], POOLS) == []
    assert acts_of([refused]).total is None


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_time_summary_has_measured_values(values: list[float]) -> None:
    spread = time_summary(values)
    assert spread is not None
    for share, value in ((0.5, spread.p50), (0.99, spread.p99), (1.0, spread.max)):
        assert value in values
        assert sum(each <= value for each in values) >= share * len(values)
        assert sum(each < value for each in values) < share * len(values)
    assert spread.mean == pytest.approx(statistics.fmean(values))


def test_stages_are_reported_in_the_order_of_the_workflow() -> None:
    answers = [answer("a", stages=[("compile", 1, 2)]), answer("b", stages=[("compile", 3, 4), ("judge", 5, 6)])]
    compiled, judged = stage_acts(answers, ["compile", "judge"])
    assert (compiled.name, compiled.finished, judged.name, judged.finished) == ("compile", 2, "judge", 1)
    assert compiled.queueing is not None
    assert compiled.queueing.mean == 2
    acts = acts_of(answers)
    assert acts.total is not None
    assert acts.total.max == 18


def test_a_pool_counts_cores_else_the_first_resource() -> None:
    stages = [
        StageTemplate(name="a", kind="noop"),
        StageTemplate(name="b", kind="code.run", node_class="big"),
        StageTemplate(name="c", kind="code.run", units={"gpus": 1, "cores": 2}),
        StageTemplate(name="d", kind="code.run", units={"gpus": (1, 4)}),
    ]
    assert pools_by_stage(stages) == {"a": "slots@default", "b": "cores@big", "c": "cores@default", "d": "gpus@default"}


def test_a_dedicated_pool_is_sized_for_each_batch() -> None:
    both = added([[PoolUse("cores@default", 2, 3, 9)], [PoolUse("cores@default", 1, 5, 10)], []])
    assert both == [PoolUse("cores@default", 3, 5, 19)]
    assert both[0].saved == pytest.approx(19 / 3)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-10, 10)), min_size=1))
def test_rewards_by_group_are_those_of_its_members(samples: list[tuple[str, float]]) -> None:
    answers = [answer(str(place), score=score) for place, (_, score) in enumerate(samples)]
    rewards = rewards_of(answers, {str(place): group for place, (group, _) in enumerate(samples)})
    assert [each.group for each in rewards.groups] == list(dict.fromkeys(group for group, _ in samples))
    for each in rewards.groups:
        scores = [score for group, score in samples if group == each.group]
        assert each.mean == pytest.approx(statistics.fmean(scores), abs=1e-12)
        assert each.std == pytest.approx(statistics.pstdev(scores), abs=1e-7)
    informative = {group for group, score in samples if any(score != other for name, other in samples if name == group)}
    assert rewards.informative_groups <= len(informative)  # tiny differences may round away, equal ones never count
    assert rewards.mean == pytest.approx(statistics.fmean(score for _, score in samples), abs=1e-12)


def test_masked_answers_are_not_in_a_mean() -> None:
    answers = [answer("a", score=1.0), answer("b", score=0.0, mask=True, ended="node-lost"), answer("c", score=None)]
    rewards = rewards_of(answers, {"a": "g", "b": "g", "c": "h"})
    assert (rewards.requests, rewards.scored, rewards.mean) == (3, 1, 1.0)
    assert [(each.scored, each.mean, each.std) for each in rewards.groups] == [(1, 1.0, 0.0), (0, None, None)]
    assert rewards.verdicts["masked"] == 1
