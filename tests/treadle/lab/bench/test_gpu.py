"""The measurements of GPUs: their load is what their names say, and each bound is that of the issue."""

from __future__ import annotations

import random
from time import perf_counter

import pytest

from shared.policy.dispatch.choice_times import ChoiceTimes
from shared.policy.dispatch.stimuli import RequestsSubmitted
from treadle.lab.bench.chunk_choices import BUSY, GPUS_OF_A_NODE, ChunkLoad, EvictionLoad, decision_times
from treadle.lab.bench.figures import BenchError
from treadle.lab.bench.gpu import decision_figures, swap_figures
from treadle.lab.bench.judge_engine import EngineClock
from treadle.lab.bench.judged_calls import first_byte_figures, measured
from treadle.lab.replay.gpu.swaps import SwapCounts

ANSWER = b'{"ended":"%s","score":%d,"output":{"text":"score: 7 {\\"port\\":1,\\"calls\\":1,\\"since_canary_ns\\":5}"}}'


def test_services_fill_the_memory_of_each_node_and_most_choices_are_grants() -> None:
    load = ChunkLoad(2, random.Random(1))
    while load.busy <= BUSY * 2 * GPUS_OF_A_NODE:
        load.follow(load.dispatcher.handle(load.now, RequestsSubmitted((load.request(),))))
    granted = 0
    for _ in range(100):
        load.now += 0.05
        load.make_room()
        before = load.granted
        assert not load.waiting
        with ChoiceTimes(perf_counter) as choices:
            took = load.decide(load.request(), choices)
        assert 0.0 < took.choosing_s < took.took_s
        granted += load.granted > before
        load.dispatcher.check()
    assert granted >= 50


def test_a_choice_is_timed_only_inside() -> None:
    load = ChunkLoad(1, random.Random(1))
    with ChoiceTimes(perf_counter) as choices:
        load.follow(load.dispatcher.handle(load.now, RequestsSubmitted((load.request(),))))
    took_s = choices.took_s
    assert took_s > 0.0
    load.follow(load.dispatcher.handle(load.now, RequestsSubmitted((load.request(),))))
    assert choices.took_s == took_s


def test_the_same_seed_makes_as_many_decisions() -> None:
    assert len(decision_times(1, 20)) == 20


def test_the_cost_of_a_decision_is_the_least_of_its_runs_and_has_the_bound() -> None:
    runs = [[1e-4, 9e-4], [9e-4, 2e-4], [2e-4, 8e-4]]
    figures = list(decision_figures("x", "decision", runs, 0.15))
    assert [(one.name, round(one.value, 9), one.met) for one in figures] == [
        ("x.p50", 0.1, None), ("x.p99", 0.9, False), ("x.cost.p50", 0.1, None), ("x.cost.p99", 0.2, False),
    ]  # fmt: skip
    with pytest.raises(BenchError, match="different decisions"):
        list(decision_figures("x", "decision", [[1.0], [1.0, 2.0]], 1.0))


def test_the_decisions_of_two_runs_are_the_same() -> None:
    one, other = (EvictionLoad(random.Random(1)) for _ in range(2))
    assert [one.want()[1] for _ in range(50)] == [other.want()[1] for _ in range(50)]


def test_most_engines_that_are_wanted_evict_others() -> None:
    load = EvictionLoad(random.Random(1))
    evictions = [load.want()[1] for _ in range(100)]
    assert sum(number > 0 for number in evictions) >= 50


def test_swaps_are_compared_with_lru_and_with_beladys_optimum() -> None:
    counts = SwapCounts(3, 1, 5, 300, lru=100, belady=60, in_order=101, reordered=60, in_order_p99_s=1.0,
                        reordered_p99_s=2.5)  # fmt: skip
    in_order, reordered, wait = swap_figures(counts)
    assert (in_order.value, in_order.met) == (101, False)
    assert (reordered.value, reordered.met) == (60, True)
    assert (wait.value, wait.unit, wait.target) == (2.5, "s", None)


@pytest.mark.parametrize("answer", [ANSWER % (b"ok", 6), ANSWER % (b"failed", 7), b'{"ended":"ok","score":7}'])
def test_an_answer_that_is_no_judgement_of_the_engine_ends_the_measurement(answer: bytes) -> None:
    with pytest.raises(BenchError):
        measured(answer)


def test_an_engine_counts_from_its_canary() -> None:
    assert measured(ANSWER % (b"ok", 7)).since_canary_ns == 5
    clock = EngineClock(port=1)
    assert clock.completion(10)["since_canary_ns"] == 0
    clock.checked_ns = 7
    assert clock.completion(10) == {"port": 1, "calls": 2, "since_canary_ns": 3}


def test_the_first_byte_has_its_bound() -> None:
    figures = first_byte_figures([0.001, 0.0019, 0.003], [0.4, 0.5, 0.6])
    assert [(one.name, one.met) for one in figures] == [
        ("gpu.first_byte.p50", True), ("gpu.first_byte.p99", False), ("gpu.swap.p50", None),
    ]  # fmt: skip
