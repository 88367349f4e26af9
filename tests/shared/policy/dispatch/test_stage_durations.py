"""Expected durations of stages: declared, learned, and bounded by the timeout."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.stage_durations import StageDurations
from shared.policy.elastic.scheduling import Scalable
from shared.policy.model.elasticity import Elasticity
from shared.policy.model.formulation import Work
from tests.shared.policy.strategies import request, work

LINEAR = replace(work(timeout_s=100.0), amounts=(1, 2, 4), elasticity=Elasticity("power", exponent=1.0))


def action_of(stage: Work) -> ActionState:
    return ActionState(request("r", stage))


def test_the_declared_duration_counts_before_the_learned_one_and_never_more_than_the_timeout() -> None:
    durations, declared = StageDurations(), action_of(replace(work(timeout_s=10.0), duration_s=4.0))
    durations.learn(declared, 7.0)
    assert durations.expect(declared) == 4.0
    assert durations.expect(action_of(replace(declared.work, duration_s=40.0))) == 10.0


def test_an_unknown_kind_is_expected_to_take_a_tenth_of_its_timeout_until_one_has_ended() -> None:
    durations, one = StageDurations(), action_of(work(timeout_s=10.0))
    assert (durations.expect(one), durations.expect_at_most(one), durations.single(one)) == (1.0, 1.0, None)
    durations.learn(one, 3.0)
    assert (durations.expect(one), durations.single(one)) == (3.0, 3.0)
    durations.learn(one, 5.0)
    assert durations.expect_at_most(one) > durations.expect(one)


def test_calls_of_an_unseen_task_are_expected_to_take_as_long_as_others_of_their_model_service() -> None:
    durations, judge = StageDurations(), replace(work(timeout_s=600.0), service="judge")
    seen = ActionState(replace(request("r", judge), tenant="a", task="seen"))
    unseen = ActionState(replace(request("r", judge), tenant="b", task="unseen"))
    durations.learn(seen, 2.0)
    assert durations.expect(unseen) == 2.0
    durations.learn(unseen, 5.0)
    assert (durations.expect(seen), durations.expect(unseen)) == (2.0, 5.0), "each has its own history then"
    other = ActionState(replace(request("r", replace(judge, service="other")), tenant="b", task="unseen"))
    assert durations.expect(other) == 60.0, "another service"
    assert durations.expect(ActionState(request("r", replace(judge, timeout_s=1.0)))) == 1.0, (
        "never more than the limit"
    )


def test_elastic_calls_of_an_unseen_task_are_expected_by_their_units_and_with_the_spread_of_the_service() -> None:
    durations, judge = StageDurations(), replace(LINEAR, service="judge", units={"cores": 2}, amounts=(2, 4))
    seen = ActionState(replace(request("r", judge), task="seen"))
    seen.units = {"cores": 2}
    durations.learn(seen, 10.0)
    durations.learn(seen, 20.0)
    unseen = ActionState(replace(request("r", judge), task="unseen"))
    assert [durations.expect(unseen, units) for units in (2, 4)] == [durations.expect(seen, units) for units in (2, 4)]
    assert durations.expect(unseen, 2) == pytest.approx(11.0)
    assert durations.expect_at_most(unseen) == durations.expect_at_most(seen) > durations.expect(unseen)
    assert (durations.single(unseen), durations.scalable(unseen)) == (None, None), "it is not planned"


def test_an_estimate_for_one_amount_is_not_kept_for_all() -> None:
    durations, one = StageDurations(), action_of(LINEAR)
    one.scalable = Scalable((1,), np.array([20.0]))
    durations.learn(one, 20.0)
    assert durations.scalable(one) is not None
    assert one.scalable.amounts == (1, 2, 4)


def test_programs_of_an_unseen_task_do_not_count_as_long_as_those_of_others() -> None:
    durations = StageDurations()
    durations.learn(ActionState(replace(request("r", work(timeout_s=600.0)), task="seen")), 2.0)
    assert durations.expect(ActionState(replace(request("r", work(timeout_s=600.0)), task="unseen"))) == 60.0


def test_executions_on_more_units_are_learned_as_seconds_on_one() -> None:
    durations, one = StageDurations(), action_of(LINEAR)
    one.units = {"cores": 4}
    durations.learn(one, 5.0)
    assert durations.single(one) == pytest.approx(20.0)
    assert [durations.expect(one, units) for units in (1, 2, 4)] == pytest.approx([20.0, 10.0, 5.0])


def test_durations_on_each_amount_are_kept_until_the_expected_duration_changes() -> None:
    durations, one = StageDurations(), action_of(LINEAR)
    assert durations.scalable(one) is None, "its duration is unknown"
    durations.learn(one, 20.0)
    first = durations.scalable(one)
    assert first is not None
    assert list(first.durations_s) == pytest.approx([20.0, 10.0, 5.0])
    durations.learn(one, 20.1)
    assert durations.scalable(one) is first, "a change below a twentieth"
    durations.learn(one, 90.0)
    assert durations.scalable(one) is not first
    assert durations.scalable(action_of(work())) is None, "not elastic"
