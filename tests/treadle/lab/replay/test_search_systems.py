"""One step of search agents under each system: laws that the service's own count shows, and cases by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.treadle.lab.replay.test_search_provider import PLAIN, admits_too_much
from treadle.lab.evaluations.search.jobs import batch_of
from treadle.lab.replay.search.assumptions import CLIENT, TRAINER, Provider
from treadle.lab.replay.search.clients import Clients, Limiter
from treadle.lab.replay.search.evaluation import DEFAULT, OURS_NAME, SYSTEMS, VARIANTS, Setting, at_rate
from treadle.lab.replay.search.evaluation import replay as replay_batch
from treadle.lab.replay.search.measures import StepRun
from treadle.lab.replay.search.provider import SimulatedProvider
from treadle.lab.replay.search.rollout import Replacement, Rollout
from treadle.lab.replay.search.simulated_mesh import SearchMesh
from treadle.lab.replay.search.trace import PAGES, SEARCH, AgentCall, SearchTrajectory
from treadle.lab.replay.search.virtual_time import VirtualTime
from treadle.lab.replay.search.workload import generate
from treadle.lab.replay.tangram.simulated_mesh import SimulationError

SMALL = DEFAULT.scaled(32)
"""64 trajectories and 3.1 searches a second."""
CALM = replace(SMALL.provider, slow_every_s=0.0)
REPLACEMENTS: tuple[Replacement, ...] = ("at once", "after the round", "never")


def replay(system: str, setting: Setting, seed: int) -> StepRun:
    return replay_batch(system, setting, batch_of(setting, seed), seed)


def fixed(setting: Setting, provider: Provider) -> Setting:
    return replace(setting, provider=provider)


@pytest.fixture(scope="module")
def runs() -> dict[str, StepRun]:
    return {system: replay(system, SMALL, 1) for system in SYSTEMS}


@pytest.mark.parametrize("system", SYSTEMS)
def test_trajectories_and_calls_are_conserved(runs: dict[str, StepRun], system: str) -> None:
    run = runs[system]
    batch = generate(np.random.default_rng(1), SMALL.trainer, SMALL.provider)
    assert run.batch == len(run.done_s) == 64
    assert run.missing == 0
    assert run.answered == run.wasted + sum(len(one.calls) for one in batch)
    assert run.first_lost <= min(run.lost, run.batch)
    for number, one in enumerate(batch):
        thinks_s = sum(call.think_s for call in one.calls) + one.last_s
        assert run.lost or run.done_s[number] > thinks_s + TRAINER.judge_s
    assert run.rollout_s == max(run.done_s)


def test_the_same_seed_gives_the_same_step_and_another_one_does_not(runs: dict[str, StepRun]) -> None:
    for system in SYSTEMS:
        assert replay(system, SMALL, 1) == runs[system]
        assert replay(system, SMALL, 2).done_s != runs[system].done_s


def test_alone_trajectories_are_refused_and_lost_and_in_the_mesh_none_is(runs: dict[str, StepRun]) -> None:
    assert runs["alone"].lost > 2
    assert runs["alone"].calls("refused") > 50
    assert runs[OURS_NAME].lost == 0
    assert runs[OURS_NAME].calls("hung") == 0
    assert runs[OURS_NAME].rollout_s < runs["alone"].rollout_s


@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.integers(1, 1000), st.sampled_from([6.0, 20.0, 90.0]), st.sampled_from([1, 6, 40]), st.floats(0, 0.2))
def test_in_the_mesh_the_service_never_refuses_a_call_if_it_keeps_to_what_it_publishes(
    seed: int, per_s: float, concurrency: int, errors: float
) -> None:
    provider = replace(CALM, per_s=per_s, burst_s=3.0, overload=9.0, concurrency=concurrency, errors=errors)
    setting = replace(fixed(SMALL, provider), trainer=replace(TRAINER, batch=24))
    run = replay(OURS_NAME, setting, seed)
    assert run.calls("refused") == run.calls("hung") == 0
    assert run.most_running[SEARCH] <= concurrency


def test_the_quota_is_less_than_the_service_gives_and_nearly_all_of_it_is_used() -> None:
    setting = replace(fixed(SMALL, replace(CALM, concurrency=64)), trainer=replace(TRAINER, batch=256))
    run = replay(OURS_NAME, setting, 1)
    assert 0.95 < run.use[SEARCH] <= 1.0
    assert run.useful_use == run.use[SEARCH]


def test_admissions_of_the_mesh_pass_a_brute_force_count() -> None:
    time, rules = VirtualTime(), replace(PLAIN, per_s=5.0, burst_s=2.0, concurrency=7, errors=0.1)
    providers = {SEARCH: SimulatedProvider(rules, Random(1)), PAGES: SimulatedProvider(rules, Random(2))}
    batch = generate(np.random.default_rng(1), replace(TRAINER, batch=60))
    run = StepRun("ours", 60, [0.0] * 60)
    mesh = SearchMesh(time, providers, DEFAULT.ours, Random(3))
    Rollout(time, mesh, batch, TRAINER, "at once", run).run()
    mesh.dispatcher.check()
    for provider in providers.values():
        assert not admits_too_much(provider.admitted_s, rules.burst, rules.per_s)
        assert provider.counts["refused"] == 0
        assert provider.running == 0
    assert run.lost == 0 or rules.errors**4 > 1e-5


@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_a_lost_trajectory_is_replaced_or_masked(replacement: Replacement) -> None:
    run = replay("alone", replace(SMALL, replacement=replacement), 1)
    assert run.lost > 2
    if replacement == "never":
        assert run.missing == run.lost == run.first_lost
    else:
        assert run.missing == 0


def test_a_place_whose_trajectories_are_always_lost_is_given_up() -> None:
    setting = fixed(SMALL, replace(CALM, errors=1.0))
    run = replay("alone", replace(setting, trainer=replace(TRAINER, batch=4, most_starts=3)), 1)
    assert (run.missing, run.lost, run.first_lost, run.answered) == (4, 12, 4, 0)


# ---- by hand ---------------------------------------------------------------------------------------------------------


def ends_of(system: str, provider: Provider, calls: int, **client: float) -> tuple[list[tuple[float, bool]], StepRun]:
    """Times and ends of calls that begin together at 0."""
    time, service = VirtualTime(), SimulatedProvider(provider, Random(1))
    rules = replace(CLIENT, jitter=0.0, **client)  # type: ignore[arg-type]
    parts = {"alone": 0, "limiter, N x": 1, "limiter, 1/N": rules.processes}[system]
    limiters = {
        (process, SEARCH): Limiter(time, provider.per_s / parts, provider.burst / parts, provider.concurrency)
        for process in range(rules.processes if parts else 0)
    }
    clients, found = Clients(time, {SEARCH: service}, rules, Random(1), limiters), list[tuple[float, bool]]()

    def done(ok: bool) -> None:
        found.append((time.now, ok))

    for number in range(calls):
        clients.call(number, AgentCall(0.0, SEARCH), done)
    while time.step():
        pass
    run = StepRun(system, calls)
    run.measure({SEARCH: service})
    return found, run


def test_alone_a_call_is_tried_four_times_with_growing_pauses() -> None:
    ends, run = ends_of("alone", replace(PLAIN, per_s=0.01, burst_s=100.0), 2)
    assert ends[0] == (1.0, True)
    assert ends[1][0] == pytest.approx(0.1 + 1 + 0.1 + 2 + 0.1 + 4 + 0.1)
    assert ends[1][1] is False
    assert run.calls("refused") == 4


def test_a_call_that_hangs_is_tried_again_after_the_timeout() -> None:
    ends, run = ends_of("alone", replace(PLAIN, hangs=1.0), 1)
    assert ends == [(4 * 600.0 + 1 + 2 + 4, False)]
    assert run.calls("hung") == 4


def test_clients_that_heed_retry_after_wait_for_it() -> None:
    ends, _ = ends_of("alone", replace(PLAIN, per_s=0.1, burst_s=10.0), 2, heeds=1)
    assert [ok for _, ok in ends] == [True, True]
    assert [at_s for at_s, _ in ends] == pytest.approx([1.0, 0.1 + 10.0 + 1.0])


def test_limiters_with_the_whole_limit_let_more_through_than_the_service_admits() -> None:
    rules = replace(PLAIN, per_s=4.0, burst_s=1.0, concurrency=100)
    _, each = ends_of("limiter, N x", rules, 40, processes=8)
    ends, parts = ends_of("limiter, 1/N", replace(rules, per_s=8.0), 40, processes=8)
    assert each.calls("refused") > 0
    assert parts.calls("refused") == 0
    assert [ok for _, ok in ends] == [True] * 40
    assert max(at_s for at_s, _ in ends) == pytest.approx(4.0 + 1.0), "one call a second in each process"


def test_a_limiter_keeps_its_order_and_its_concurrency() -> None:
    time, order = VirtualTime(), list[int]()
    limiter = Limiter(time, per_s=10.0, burst=5.0, concurrency=2)

    def going(number: int) -> Callable[[], None]:
        def go() -> None:
            assert limiter.running <= 2
            order.append(number)
            time.after(3.0, limiter.release)

        return go

    for number in range(6):
        limiter.acquire(going(number))
    while time.step():
        pass
    assert order == [0, 1, 2, 3, 4, 5]
    assert time.now == pytest.approx(9.0)


def test_callbacks_of_one_moment_run_in_order_and_past_ones_at_once() -> None:
    time, seen = VirtualTime(), list[tuple[float, str]]()
    time.at(2.0, lambda: seen.append((time.now, "second")))
    time.at(2.0, lambda: time.at(1.0, lambda: seen.append((time.now, "late"))))
    time.at(1.0, lambda: seen.append((time.now, "first")))
    while time.step():
        pass
    assert seen == [(1.0, "first"), (2.0, "second"), (2.0, "late")]


def test_trajectories_that_wait_forever_are_an_error() -> None:
    class Silent:
        def call(self, slot: int, call: AgentCall, done: Callable[[bool], None]) -> None:
            pass

    batch = (SearchTrajectory("a", (AgentCall(1.0, SEARCH),)),)
    run = StepRun("silent", 1, [0.0])
    with pytest.raises(SimulationError, match="1 trajectories wait at 1 s"):
        Rollout(VirtualTime(), Silent(), batch, TRAINER, "at once", run).run()


def test_settings_differ_from_the_evaluation_in_what_they_name() -> None:
    assert at_rate(25.0).provider.per_s == 25.0
    assert at_rate(25.0).provider.concurrency == 100
    assert at_rate(100.0) == DEFAULT
    assert len({repr(one) for one in (DEFAULT, *VARIANTS.values())}) == 1 + len(VARIANTS)
