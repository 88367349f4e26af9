"""The generated workload against DistRS §3 and §6.1."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from treadle.lab.replay.distrs.generate import MOST_TOKENS, WINDOW_S, Architecture, describe, generate, states_at
from treadle.lab.replay.distrs.trace import RewardTrace, TracedBatch

SEEDS = (1, 2, 3, 4, 5)


@cache
def whole(seed: int, architecture: Architecture = "colocated") -> RewardTrace:
    return generate(np.random.default_rng(seed), architecture=architecture)


@cache
def found(seed: int, architecture: Architecture = "colocated") -> dict[str, float]:
    return describe(whole(seed, architecture))


def same(one: TracedBatch, other: TracedBatch) -> bool:
    return np.array_equal(one.arrivals_s, other.arrivals_s) and np.array_equal(
        one.executions_s, other.executions_s, equal_nan=True
    )


def test_six_tasks_of_fifty_batches_of_2048_requests() -> None:
    trace = whole(1)
    assert [len(task.batches) for task in trace.tasks] == [50] * 6
    assert {batch.size for task in trace.tasks for batch in task.batches} == {2048}
    assert [stage.timeout_s for stage in trace.stages] == [120.0, 60.0]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_rate_peaks_at_over_180_requests_in_10_s(seed: int) -> None:
    assert 180 < found(seed)["peak_per_10_s"] < 230


@pytest.mark.parametrize("seed", SEEDS)
def test_roughly_half_of_an_iteration_sees_no_request(seed: int) -> None:
    assert 0.4 < found(seed)["silent_share"] < 0.6


@pytest.mark.parametrize("seed", SEEDS)
def test_an_iteration_takes_over_600_seconds(seed: int) -> None:
    assert 600 < found(seed)["iteration_s"] < 800


@pytest.mark.parametrize("seed", SEEDS)
def test_the_rate_rises_quickly_and_decays_with_a_long_tail(seed: int) -> None:
    for batch in whole(seed).tasks[0].batches:
        rate = np.bincount(((batch.arrivals_s - batch.arrivals_s[0]) // 10.0).astype(int))
        assert rate.argmax() < len(rate) / 3
    assert found(seed)["first_arrival_s"] > 10
    assert found(seed)["last_twentieth_span"] > 0.25


@pytest.mark.parametrize("seed", SEEDS)
def test_adjacent_iterations_arrive_alike(seed: int) -> None:
    assert found(seed)["adjacent_likeness"] > 0.94


@pytest.mark.parametrize("seed", SEEDS)
def test_outputs_have_at_most_16k_tokens_and_arrive_by_their_length(seed: int) -> None:
    for batch in whole(seed).tasks[0].batches:
        assert batch.lengths is not None
        assert batch.lengths.max() <= MOST_TOKENS == 16_384
        assert np.mean(batch.lengths == MOST_TOKENS) < 0.03
        assert np.corrcoef(batch.lengths, batch.arrivals_s)[0, 1] > 0.999


@pytest.mark.parametrize("seed", SEEDS)
def test_stages_take_what_they_took(seed: int) -> None:
    figures = found(seed)
    assert figures["compile_median_s"] == pytest.approx(50, abs=1)
    assert 2 < figures["run_median_s"] < 6
    assert 0 < figures["compile_timeout_share"] < 0.05
    assert 0 < figures["run_timeout_share"] < 0.05


@pytest.mark.parametrize("seed", SEEDS)
def test_most_runtimes_are_consistent_and_none_outlasts_its_timeout(seed: int) -> None:
    trace = whole(seed)
    for number, stage in enumerate(trace.stages):
        took = np.concatenate([batch.executions_s[number][batch.reached(number)] for batch in trace.tasks[0].batches])
        assert took.min() > 0
        assert took.max() == stage.timeout_s
        assert np.mean(took < 2 * np.median(took)) > 0.95


@pytest.mark.parametrize("seed", SEEDS)
def test_fewer_stop_early_and_more_node_time_is_consumed_as_training_continues(seed: int) -> None:
    figures = found(seed)
    for falling in ("stopped_before_compile", "stopped_before_run"):
        assert figures[f"{falling}_last"] < figures[f"{falling}_first"]
    for rising in ("compile_busy", "run_busy"):
        assert figures[f"{rising}_last_s"] > figures[f"{rising}_first_s"]


def test_shares_of_states_move_as_in_figure_6b() -> None:
    shares = [states_at(progress) for progress in np.linspace(0, 1, 51)]
    assert all(sum(each.values()) == pytest.approx(1) for each in shares)
    moves = {state: np.diff([each[state] for each in shares]) for state in shares[0]}
    assert (moves["generation failed"] < 0).all()
    assert (moves["compile failed"] < 0).all()
    assert (moves["success"] > 0).all()
    assert np.sign(moves["execute error"]).tolist() == [1] * 25 + [-1] * 25


@pytest.mark.parametrize("seed", SEEDS)
def test_shares_found_are_those_of_the_table(seed: int) -> None:
    for when, progress in (("first", 0.0), ("last", 1.0)):
        states = states_at(progress)
        assert found(seed)[f"stopped_before_compile_{when}"] == pytest.approx(states["generation failed"], abs=0.05)
        assert found(seed)[f"stopped_before_run_{when}"] == pytest.approx(states["compile failed"], abs=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_stages_are_reached_in_order_and_not_after_a_limit(seed: int) -> None:
    for batch in whole(seed).tasks[0].batches:
        assert not (batch.reached(1) & ~batch.reached(0)).any()
        assert not batch.reached(1)[batch.executions_s[0] == 120.0].any()
        assert batch.lengths is not None
        assert not batch.reached(0)[batch.lengths == MOST_TOKENS].any()


def test_tasks_replay_the_same_batches_and_start_within_the_window() -> None:
    trace = whole(1)
    starts = [task.batches[0].gap_s for task in trace.tasks]
    assert starts[0] == 0
    assert sorted(set(starts)) == starts
    assert starts[-1] <= WINDOW_S
    for task in trace.tasks[1:]:
        assert all(same(*pair) for pair in zip(task.batches, trace.tasks[0].batches, strict=True))


def test_architectures_differ_in_the_gaps_alone() -> None:
    colocated, disaggregated = whole(1), whole(1, "disaggregated")
    for ours, theirs in zip(colocated.tasks, disaggregated.tasks, strict=True):
        assert all(same(*pair) for pair in zip(ours.batches, theirs.batches, strict=True))
        assert ours.batches[0].gap_s == theirs.batches[0].gap_s
        assert all(one.gap_s > 10 * two.gap_s for one, two in zip(ours.batches[1:], theirs.batches[1:], strict=True))
    assert found(1, "disaggregated")["silent_share"] < found(1)["silent_share"]


def test_a_seed_gives_one_trace_and_seeds_differ() -> None:
    again = generate(np.random.default_rng(1), architecture="colocated")
    pairs = list(zip(whole(1).tasks[0].batches, again.tasks[0].batches, strict=True))
    assert all(same(*pair) and pair[0].gap_s == pair[1].gap_s for pair in pairs)
    assert not same(whole(2).tasks[0].batches[0], again.tasks[0].batches[0])


@pytest.mark.parametrize("architecture", ["colocated", "disaggregated"])
@pytest.mark.parametrize(("tasks", "iterations", "size"), [(1, 1, 1), (2, 3, 4), (1, 2, 1)])
def test_small_traces_are_traces_too(architecture: Architecture, tasks: int, iterations: int, size: int) -> None:
    for seed in range(20):
        trace = generate(
            np.random.default_rng(seed), architecture=architecture, tasks=tasks, iterations=iterations, size=size
        )
        assert [[batch.size for batch in task.batches] for task in trace.tasks] == [[size] * iterations] * tasks
        assert describe(trace)["iteration_s"] > 0


@pytest.mark.parametrize("wrong", ["tasks", "iterations", "size"])
def test_counts_must_be_positive(wrong: str) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        generate(np.random.default_rng(1), architecture="colocated", **{wrong: 0})
