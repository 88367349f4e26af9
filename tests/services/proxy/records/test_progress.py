"""Progress of a batch, from its answers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.proxy.records.progress import Progress, spread_of
from shared.api.requests import Act, Answer, StageReport
from shared.bus.batches import StoredBatch
from shared.policy.model.formulation import EndedAs

BATCH = StoredBatch(
    id="b", tenant="ada", task="t", state="open", size=4, submitted=3, answered=2,
    opened_at=90.0, first_at=100.0, active_at=101.0, ended_at=None, workflow=b"{}",
)  # fmt: skip


def answer(arrived_at: float, *stages: tuple[str, float, float], overhead_s: float = 0.5) -> bytes:
    queue_s = sum(stage[1] for stage in stages)
    execution_s = sum(stage[2] for stage in stages)
    act = Act(
        queue_s=queue_s, execution_s=execution_s, overhead_s=overhead_s, total_s=queue_s + execution_s + overhead_s
    )
    reports = [
        StageReport(name=name, queue_s=queued, execution_s=executed, node="n", attempts=1, units=1)
        for name, queued, executed in stages
    ]
    return msgspec.json.encode(Answer(id="a", state="finished", arrived_at=arrived_at, act=act, stages=reports))


def test_a_batch_without_answers_shows_only_what_is_stored() -> None:
    view = Progress().view(BATCH, None)

    assert (view.id, view.state, view.size, view.submitted, view.answered) == ("b", "open", 4, 3, 2)
    assert (view.opened_at, view.first_arrival_at, view.ended_at) == (90.0, 100.0, None)
    assert (view.expected_completion_at, view.extra_delay_s, view.overhead_s, view.stages) == (None, None, None, [])


def test_the_estimate_is_kept_until_an_answer_implies_a_later_one() -> None:
    progress = Progress()
    progress.add(answer(100.0, ("run", 0.0, 5.0)))

    assert progress.view(BATCH, 200.0).expected_completion_at == 200.0
    assert progress.view(BATCH, 102.0).expected_completion_at == 105.0


def test_extra_delay_is_how_much_later_the_last_answer_came_than_it_could_have() -> None:
    progress = Progress()
    progress.add(answer(100.0, ("run", 1.0, 9.0)))  # could have come at 109, came at 110.5
    progress.add(answer(104.0, ("run", 6.0, 2.0)))  # could have come at 106, came at 112.5

    view = progress.view(BATCH, None)

    assert view.expected_completion_at == 109.0
    assert view.extra_delay_s == pytest.approx(112.5 - 109.0)


def test_stages_are_counted_in_their_order_with_early_exits() -> None:
    progress = Progress()
    progress.add(answer(100.0, ("compile", 1.0, 2.0)))
    progress.add(answer(100.0, ("compile", 3.0, 2.0), ("run", 0.0, 4.0)))

    compiled, ran = progress.view(BATCH, None).stages

    assert (compiled.name, compiled.finished, ran.name, ran.finished) == ("compile", 2, "run", 1)
    assert compiled.queue_s is not None
    assert (compiled.queue_s.mean, compiled.queue_s.max) == (2.0, 3.0)


def test_an_answer_that_never_ran_leaves_the_delay_estimate() -> None:
    progress = Progress()
    progress.add(msgspec.json.encode(Answer(id="a", state="finished", arrived_at=100.0, ended="cancelled")))
    progress.add(answer(100.0))

    view = progress.view(BATCH, None)
    assert (view.expected_completion_at, view.extra_delay_s, view.overhead_s) == (None, None, None)


def test_nothing_has_no_spread() -> None:
    assert spread_of([]) is None


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_spread_lies_within_its_values_and_is_ordered(values: list[float]) -> None:
    spread = spread_of(values)

    assert spread is not None
    assert {spread.p50, spread.p99, spread.max} <= set(values)
    assert min(values) <= spread.p50 <= spread.p99 <= spread.max == max(values)
    assert min(values) - 1e-6 <= spread.mean <= max(values) + 1e-6
    assert sum(value <= spread.p50 for value in values) >= len(values) / 2
    assert sum(value <= spread.p99 for value in values) >= 0.98 * len(values) - 1


def masked(ended: EndedAs, reason: str) -> bytes:
    return msgspec.json.encode(Answer(id="a", state="finished", ended=ended, mask=True, reason=reason))


def test_usage_is_summed_by_name_over_all_answers() -> None:
    progress = Progress()
    for usage in ({"cpu_s": 1.5, "tokens": 10.0}, {"cpu_s": 0.25}, {}, {"gpu_s": 3.0}):
        progress.add(msgspec.json.encode(Answer(id="a", state="finished", ended="ok", usage=usage)))
    progress.add(answer(100.0, ("run", 1.0, 9.0)))  # of a release without usage

    assert progress.view(BATCH, None).usage == {"cpu_s": 1.75, "tokens": 10.0, "gpu_s": 3.0}


def test_masked_answers_are_counted_by_how_they_ended() -> None:
    progress = Progress()
    for _ in range(12):
        progress.add(answer(100.0, ("run", 1.0, 9.0)))
    for number in range(6):
        progress.add(masked("refused", f"no interpreter {number}"))
    progress.add(masked("node-lost", ""))
    progress.add(masked("expired", "x" * 2000))

    view = progress.view(BATCH, None)

    assert (view.masked, view.masked_share) == (8, 0.4)
    assert [(each.ended, each.count, each.share) for each in view.failures] == [
        ("refused", 6, 0.3),
        ("expired", 1, 0.05),
        ("node-lost", 1, 0.05),
    ]
    assert [each.reason for each in view.failures] == ["no interpreter 5", "x" * 500, ""]
