"""Attempts settle their quotas by what they have really used, and later ones reserve what was learned."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import AmountRestored, QuotaSet
from shared.policy.dispatch.stimuli import ActionCancelled, AttemptsEnded, NodeSeen, TickPassed
from shared.policy.model.formulation import AnswerAction, AskInventory, Command, Grant, Request, Work
from shared.policy.model.quotas import LEARNED, QuotaLimits, Rate
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult, ExecutionStatus
from shared.policy.resources.quota_estimates import Estimate
from tests.shared.policy.dispatch.dispatch_hosts import Host
from tests.shared.policy.dispatch.dispatch_simulation import DispatchSimulation
from tests.shared.policy.dispatch.leading import leading, meet, submit
from tests.shared.policy.strategies import CORES, QUOTAS, request, submitted, work

TOKENS = QuotaLimits((), (Rate(100.0, 10.0),))


def judging(amount: float) -> Work:
    return replace(work(), quotas={"tokens": amount})


def end(
    dispatcher: Dispatcher, grant: Grant, used: dict[str, float], now: float, status: ExecutionStatus = "ok"
) -> list[Command]:
    result = AttemptResult(status, True if status == "ok" else None, reason="so be it", quotas_used=used)
    one = Ended(grant.action, grant.node, grant.attempt, grant.stage, result, execution_s=1.0)
    commands = dispatcher.handle(now, AttemptsEnded((one,)))
    dispatcher.check()
    return commands


def with_tokens(limits: QuotaLimits = TOKENS) -> Dispatcher:
    dispatcher = leading("n", cores=8)
    dispatcher.handle(0.0, QuotaSet("tokens", limits))
    return dispatcher


def asking(name: str, amount: float, seq: int) -> Request:
    return request(name, judging(amount), seq=seq)


def grants(commands: list[Command]) -> list[str]:
    return [one.action for one in commands if isinstance(one, Grant)]


def test_a_refund_lets_the_next_action_start_at_once() -> None:
    dispatcher = with_tokens()
    (first,) = submit(dispatcher, asking("first", 80.0, 1), asking("second", 50.0, 2))
    commands = end(dispatcher, first, {"tokens": 20.0}, 1.0)
    assert grants(commands) == ["second"]
    (answer,) = [one for one in commands if isinstance(one, AnswerAction)]
    assert [(refund.quota, refund.amount) for refund in answer.settled[0].refunds] == [("tokens", 60.0)]


def test_after_a_debit_nothing_is_granted_until_it_has_refilled() -> None:
    dispatcher = with_tokens()
    (first,) = submit(dispatcher, asking("first", 80.0, 1))
    end(dispatcher, first, {"tokens": 180.0}, 1.0)
    assert not grants(dispatcher.handle(1.0, submitted(asking("second", 10.0, 2))))
    assert dispatcher.next_wake_s == pytest.approx(9.0), "170 are missing at 1 s, 90 may be"
    assert grants(dispatcher.handle(dispatcher.next_wake_s, TickPassed())) == ["second"]


@pytest.mark.parametrize("used", [math.nan, math.inf, -math.inf, -1.0, 1.1e9])
def test_amounts_that_cannot_be_true_are_ignored(used: float) -> None:
    dispatcher = with_tokens()
    (first,) = submit(dispatcher, asking("first", 80.0, 1))
    commands = end(dispatcher, first, {"tokens": used, "others": 5.0}, 0.0)
    (answer,) = [one for one in commands if isinstance(one, AnswerAction)]
    assert answer.settled[0].refunds == ()
    assert dispatcher.cluster.quotas.missing("tokens", TOKENS.rates[0], 0.0) == 80.0


@pytest.mark.parametrize("used", [300.0, 1e9])
def test_a_report_closes_a_quota_for_at_most_two_periods(used: float) -> None:
    dispatcher = with_tokens()
    (first,) = submit(dispatcher, asking("first", 80.0, 1))
    end(dispatcher, first, {"tokens": used}, 0.0)
    assert dispatcher.cluster.quotas.missing("tokens", TOKENS.rates[0], 0.0) == 200.0
    assert not grants(dispatcher.handle(0.0, submitted(asking("second", 100.0, 2))))
    assert dispatcher.next_wake_s == pytest.approx(20.0)
    assert grants(dispatcher.handle(20.0, NodeSeen("n", "1"), TickPassed())) == ["second"]


@given(st.lists(st.tuples(st.floats(0.0, 1e9), st.floats(0.0, 5.0)), min_size=1, max_size=8))
def test_no_reports_take_more_than_two_full_buckets(reports: list[tuple[float, float]]) -> None:
    """The level, by an account that is kept apart."""
    dispatcher, level, now = with_tokens(), 8 * 10.0, 0.0
    granted = submit(dispatcher, *(asking(f"a{n}", 10.0, n + 1) for n in range(8)))
    for grant, (used, after_s) in zip(granted, reports, strict=False):
        level, now = max(0.0, level - 10.0 * after_s), now + after_s
        dispatcher.handle(now, NodeSeen("n", "1"))
        end(dispatcher, grant, {"tokens": max(used, 10.0)}, now)
        level = max(level, min(level + max(used, 10.0) - 10.0, 200.0))
        assert dispatcher.cluster.quotas.missing("tokens", TOKENS.rates[0], now) == pytest.approx(level)


def test_money_that_was_spent_beyond_the_limit_counts_against_a_higher_one() -> None:
    dispatcher = with_tokens(budget(50.0))
    (first,) = submit(dispatcher, asking("first", 1.0, 1))
    end(dispatcher, first, {"tokens": 200.0}, 0.0)
    assert not submit(dispatcher, asking("second", 50.0, 2))
    assert not grants(dispatcher.handle(1.0, QuotaSet("tokens", budget(150.0))))
    assert not grants(dispatcher.handle(2.0, QuotaSet("tokens", budget(249.0))))
    assert grants(dispatcher.handle(3.0, QuotaSet("tokens", budget(250.0)))) == ["second"]


def test_an_operator_opens_a_quota_of_money_after_a_wrong_report_by_a_limit_beyond_it() -> None:
    dispatcher = with_tokens(budget(50.0))
    (first,) = submit(dispatcher, asking("first", 1.0, 1))
    end(dispatcher, first, {"tokens": 1e9}, 0.0)
    assert not submit(dispatcher, asking("second", 50.0, 2))
    taken = dispatcher.cluster.quotas.missing("tokens", budget(50.0).rates[0], 1.0)
    assert grants(dispatcher.handle(1.0, QuotaSet("tokens", budget(taken + 50.0)))) == ["second"]


def budget(limit: float) -> QuotaLimits:
    return QuotaLimits((), (Rate(limit, None),))


def test_a_retry_pays_again_and_each_attempt_is_settled_by_its_own_use() -> None:
    dispatcher = with_tokens()
    submit(dispatcher, asking("first", 30.0, 1))
    result = AttemptResult("postponed", reason="503", retry_in_s=1.0, quotas_used={"tokens": 10.0})
    dispatcher.handle(0.0, AttemptsEnded((Ended("first", "n", 1, 0, result),)))
    assert dispatcher.cluster.quotas.missing("tokens", TOKENS.rates[0], 0.0) == 10.0
    (again,) = [one for one in dispatcher.handle(2.0, TickPassed()) if isinstance(one, Grant)]
    assert (again.attempt, again.hold is not None and again.hold.amounts) == (2, {"tokens": 30.0})
    end(dispatcher, again, {"tokens": 30.0}, 2.0)
    assert dispatcher.cluster.quotas.missing("tokens", TOKENS.rates[0], 2.0) == 30.0


UNEXECUTED = AttemptResult("postponed", reason="429", retry_in_s=1.0, unexecuted=True)


def ended(dispatcher: Dispatcher, action: str, result: AttemptResult) -> None:
    dispatcher.handle(0.0, AttemptsEnded((Ended(action, "n", 1, 0, result),)))
    dispatcher.check()


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_call_that_was_not_executed_pays_rates_and_no_budget(cancelled: bool) -> None:
    limits = QuotaLimits((40.0,), (Rate(100.0, 10.0), Rate(50.0, None)))
    dispatcher = with_tokens(limits)
    submit(dispatcher, asking("first", 30.0, 1))
    if cancelled:
        dispatcher.handle(0.0, ActionCancelled("first", "not wanted"))
    ended(dispatcher, "first", UNEXECUTED)
    quotas = dispatcher.cluster.quotas
    assert [quotas.missing("tokens", rate, 0.0) for rate in limits.rates] == [30.0, 0.0]


def test_declined_calls_never_spend_a_budget() -> None:
    dispatcher = with_tokens(budget(50.0))
    submit(dispatcher, asking("first", 30.0, 1))
    for attempt in range(1, 6):
        now = 10.0 * attempt
        dispatcher.handle(now, NodeSeen("n", "1"), AttemptsEnded((Ended("first", "n", attempt, 0, UNEXECUTED),)))
        assert grants(dispatcher.handle(now + 1.0, TickPassed())) == ["first"]


def test_an_orphan_that_was_not_executed_gives_its_budget_to_the_next_attempt() -> None:
    dispatcher = with_tokens(budget(50.0))
    submit(dispatcher, asking("first", 30.0, 1))
    action = dispatcher.registry.actions["first"]
    dispatcher.cluster.orphan(action, 0.0)
    action.move("queued")
    dispatcher.cluster.queues.enqueue(action)
    assert not grants(dispatcher.handle(0.0, TickPassed())), "the orphan has 30 of 50"
    ended(dispatcher, "first", UNEXECUTED)
    assert (action.state, action.attempt) == ("granted", 2)


def test_a_call_that_was_not_executed_teaches_nothing() -> None:
    dispatcher = with_tokens()
    dispatcher.handle(0.0, AmountRestored(("ada", "t", "tokens"), Estimate.of((30.0,))))
    submit(dispatcher, asking("first", LEARNED, 1))
    ended(dispatcher, "first", msgspec.structs.replace(UNEXECUTED, quotas_used={"tokens": 0.0}))
    assert dispatcher.cluster.quotas.missing("tokens", TOKENS.rates[0], 0.0) == 0.0
    assert dispatcher.learned_amounts(0)[1] == {("ada", "t", "tokens"): Estimate.of((30.0,))}


@pytest.mark.parametrize(("unexecuted", "charged"), [(True, 0.0), (False, 1.0)])
def test_a_tenant_is_not_charged_for_a_budget_that_was_given_back(unexecuted: bool, charged: float) -> None:
    dispatcher = with_tokens(dataclasses.replace(budget(50.0), weights={"ada": 1.0, "bob": 1.0}))
    submit(dispatcher, of("ada", "first", 1), of("bob", "second", 2))
    ended(dispatcher, "first", AttemptResult("upstream-failed", reason="503", unexecuted=unexecuted))
    assert dispatcher.cluster.quotas.shares.by_quota["tokens"].tenants["ada"].time == charged


def test_a_cancelled_attempt_is_settled_by_what_it_has_used() -> None:
    dispatcher = with_tokens()
    (first,) = submit(dispatcher, asking("first", 80.0, 1))
    dispatcher.handle(0.0, ActionCancelled("first", "not wanted"))
    end(dispatcher, first, {"tokens": 15.0}, 0.0, "cancelled")
    assert dispatcher.cluster.quotas.missing("tokens", TOKENS.rates[0], 0.0) == 15.0


def test_a_refund_that_was_lost_with_its_leader_is_given_back_by_the_next() -> None:
    """The refund of an answer and the grant that needs it are written beside each other: one may arrive alone."""
    simulation = DispatchSimulation({"a": Host("a", "cpu", {"cores": 1}, frozenset({"run"}))})
    simulation.settle(1)
    money = replace(work(CORES), name="s0", quotas={"money": 2.0})
    for seq in (1, 2):  # one after the other, on one core
        simulation.submit(Request(f"r{seq}", "ada", "t", "", (1_000_000, seq), (money,), 2000.0))
    simulation.write(len(simulation.writes))
    simulation.deliver(simulation.hosts["a"], 1)
    run = simulation.hosts["a"].runs["r1"]
    simulation.outcomes += simulation.outcomes[:1] * (2 - len(simulation.outcomes) % 6)  # so that it uses 0.4 * 2.0
    simulation.end(simulation.hosts["a"], run, "ok", passed=True)
    simulation.lead_reads(len(simulation.outcomes))
    assert [type(command) for _, command in simulation.writes] == [AnswerAction, Grant]
    simulation.tear()
    assert [type(command) for _, command in simulation.writes if not isinstance(command, AskInventory)] == [
        AnswerAction
    ]
    simulation.check_quotas()
    (rate,) = (rate for rate in QUOTAS["money"].rates if rate.period_s is None)
    assert simulation.quotas.missing("money", rate, simulation.now) == 4.0
    simulation.write(len(simulation.writes))
    assert simulation.quotas.missing("money", rate, simulation.now) == pytest.approx(2.8)
    simulation.check_quotas()


def test_concurrency_is_not_corrected() -> None:
    dispatcher = with_tokens(QuotaLimits((10.0,)))
    first, second = submit(dispatcher, asking("first", 4.0, 1), asking("second", 4.0, 2))
    end(dispatcher, first, {"tokens": 100.0}, 1.0)
    assert dispatcher.cluster.quotas.used == {"tokens": 4.0}
    end(dispatcher, second, {"tokens": 0.0}, 1.0)
    assert not dispatcher.cluster.quotas.used


def of(tenant: str, name: str, seq: int) -> Request:
    return replace(asking(name, 1.0, seq), tenant=tenant)


def virtual_times(limits: QuotaLimits, used: float) -> dict[str, float]:
    """Return the virtual times of two tenants, of which one has reported its use of a unit."""
    dispatcher = with_tokens(dataclasses.replace(limits, weights={"ada": 1.0, "bob": 1.0}))
    first, _ = submit(dispatcher, of("ada", "first", 1), of("bob", "second", 2))
    end(dispatcher, first, {"tokens": used}, 0.0)
    tenants = dispatcher.cluster.quotas.shares.by_quota["tokens"].tenants
    return {name: share.time for name, share in tenants.items()}


@pytest.mark.parametrize("used", [0.0, 0.1, 1.0, 5.0, 1e9])
def test_a_report_about_slots_changes_no_turn(used: float) -> None:
    assert virtual_times(QuotaLimits((10.0,)), used) == {"ada": 1.0, "bob": 1.0}


@pytest.mark.parametrize(("used", "charged"), [(0.0, 0.0), (0.25, 0.25), (1.0, 1.0), (5.0, 5.0), (1e9, 1.0 + 200.0)])
@pytest.mark.parametrize("concurrency", [(), (10.0,)])
def test_a_tenant_is_charged_for_what_a_report_takes(
    used: float, charged: float, concurrency: tuple[float, ...]
) -> None:
    """A wrong report of 1e9 would end the tenant's turns for good."""
    limits = QuotaLimits(concurrency, (Rate(100.0, None), Rate(10.0, 1.0)))
    assert virtual_times(limits, used) == {"ada": pytest.approx(charged), "bob": 1.0}


# ---- learned amounts -------------------------------------------------------------------------------------------------


def reserved(grant: Grant) -> float:
    assert grant.hold is not None
    return grant.hold.amounts["tokens"]


def test_waiting_work_reserves_what_was_learned_meanwhile() -> None:
    dispatcher = leading("n", cores=1)
    dispatcher.handle(0.0, QuotaSet("tokens", QuotaLimits((), (Rate(10_000.0, 10.0),))))
    (first,) = submit(dispatcher, asking("first", LEARNED, 1), asking("second", LEARNED, 2))
    assert reserved(first) == 1.0, "nothing is known yet"
    (second,) = [one for one in end(dispatcher, first, {"tokens": 700.0}, 1.0) if isinstance(one, Grant)]
    assert reserved(second) == 700.0


def test_an_estimate_is_never_more_than_a_limit_that_was_lowered_meanwhile() -> None:
    dispatcher = with_tokens()
    dispatcher.handle(0.0, AmountRestored(("ada", "t", "tokens"), Estimate.of((700.0,))))
    (first,) = submit(dispatcher, asking("first", LEARNED, 1), asking("second", LEARNED, 2))
    assert reserved(first) == 100.0
    dispatcher.handle(1.0, QuotaSet("tokens", QuotaLimits((), (Rate(20.0, 10.0),))))
    dispatcher.check()
    assert not dispatcher.waiting_reasons().actions, "it is not stuck"
    granted = [one for one in dispatcher.handle(100.0, NodeSeen("n", "1"), TickPassed()) if isinstance(one, Grant)]
    assert [reserved(one) for one in granted] == [20.0]
    assert not submit(dispatcher, asking("explicit", 21.0, 3))
    assert [reason.wait for reason in dispatcher.waiting_reasons().actions.values()] == ["stuck"]


def test_estimates_are_of_one_tenant_and_task() -> None:
    dispatcher = with_tokens()
    dispatcher.handle(0.0, AmountRestored(("ada", "t", "tokens"), Estimate.of((30.0,))))
    granted = submit(
        dispatcher,
        asking("mine", LEARNED, 1),
        request("other task", judging(LEARNED), seq=2, task="u"),
        request("other tenant", judging(LEARNED), seq=3, tenant="bob"),
        request("without a task", judging(LEARNED), seq=4, task=""),
    )
    assert [reserved(one) for one in granted] == [30.0, 1.0, 1.0, 1.0]
    end(dispatcher, granted[3], {"tokens": 8.0}, 1.0)
    assert dispatcher.learned_amounts(0)[1] == {
        ("ada", "t", "tokens"): Estimate.of((30.0,)),
        ("ada", "run", "tokens"): Estimate.of((8.0,)),
    }


# ---- the page --------------------------------------------------------------------------------------------------------


def test_waiting_work_is_counted_by_tenant_until_it_is_granted() -> None:
    dispatcher = with_tokens()
    meet(dispatcher, "m")
    (first,) = submit(
        dispatcher,
        asking("first", 90.0, 1),
        asking("second", 30.0, 2),
        request("third", judging(25.0), seq=3, tenant="bob"),
        request("fourth", judging(200.0), seq=4, tenant="bob"),
    )
    found = dispatcher.survey(0.0).quotas["tokens"]
    assert {tenant: tuple(one) for tenant, one in found.tenants.items()} == {"ada": (1, 30.0), "bob": (2, 225.0)}
    assert (found.actions, found.held) == (3, 90.0)
    assert found.free_s == pytest.approx(1.5)
    end(dispatcher, first, {"tokens": 0.0}, 0.0)
    found = dispatcher.survey(0.0).quotas["tokens"]
    assert {tenant: tuple(one) for tenant, one in found.tenants.items()} == {"bob": (1, 200.0)}
    assert (found.free_s, found.held) == (None, 55.0), "it can never be taken"
    dispatcher.handle(0.0, ActionCancelled("fourth", "not wanted"))
    dispatcher.check()
    assert dispatcher.survey(0.0).quotas["tokens"].actions == 0
