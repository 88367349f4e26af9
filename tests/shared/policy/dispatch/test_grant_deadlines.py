"""Deadlines for the grant: kept while an action waits, void once it is granted, and not applied by a new leader to what
a former one may have granted.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import AmountRestored, QuotaSet
from shared.policy.dispatch.stimuli import (
    ActionCancelled,
    ActionRestored,
    AttemptsEnded,
    InventoryReported,
    NodeJoined,
    RequestsSubmitted,
    TickPassed,
)
from shared.policy.model.formulation import AnswerAction, Command, Grant, Request, Revoke
from shared.policy.model.quotas import LEARNED, QuotaLimits, Rate
from shared.policy.model.reports import Ended, HeldGrant
from shared.policy.model.results import AttemptResult, Feedback, UpstreamAnswer
from shared.policy.resources.quota_estimates import Estimate
from tests.shared.policy.strategies import SPECS, request, work

HOLDING = replace(work(timeout_s=30.0), quotas={"search": 1.0}, repeatable=False)
JOINED = NodeJoined("n", "1", "cpu", {"cores": 100, "calls": 100}, frozenset({"run"}))


def holding(name: str, deadline_s: float, *, seq: int = 0, amount: float = 1.0, resource: str = "cores") -> Request:
    needs = replace(HOLDING, pool=f"{resource}@cpu", units={resource: 1}, quotas={"search": amount})
    return replace(request(name, needs, seq=seq), deadline_s=deadline_s, until_granted=True)


def serving(limits: QuotaLimits) -> Dispatcher:
    dispatcher = Dispatcher(specs=SPECS)
    dispatcher.handle(0.0, QuotaSet("search", limits))
    dispatcher.handle(0.0, JOINED)
    dispatcher.handle(0.0, InventoryReported("n", "1", {}))
    return dispatcher


def granted(commands: list[Command]) -> list[str]:
    return [one.action for one in commands if isinstance(one, Grant)]


def answered(commands: list[Command]) -> list[tuple[str, str]]:
    return [(one.action, one.ended) for one in commands if isinstance(one, AnswerAction)]


def submit(dispatcher: Dispatcher, now: float, *requests: Request) -> list[Command]:
    commands = dispatcher.handle(now, RequestsSubmitted(requests))
    dispatcher.check()
    return commands


def end(dispatcher: Dispatcher, now: float, action: str, *answers: UpstreamAnswer, **used: float) -> list[Command]:
    """End the first attempt of an action. `answers`: of the provider; `used`: quota -> amount."""
    feedback = tuple(Feedback("search", answer) for answer in answers)
    result = AttemptResult("ok", quotas_used=used, feedback=feedback)
    commands = dispatcher.handle(now, AttemptsEnded((Ended(action, "n", 1, 0, result, execution_s=1.0),)))
    dispatcher.check()
    return commands


def test_a_late_action_is_answered_once_if_its_deadline_is_checked_in_the_same_round() -> None:
    dispatcher = serving(QuotaLimits((1.0,)))
    submit(dispatcher, 0.0, holding("a", 5.0))
    commands = dispatcher.handle(7.0, RequestsSubmitted((holding("b", 6.0, seq=1),)), TickPassed())
    assert answered(commands) == [("b", "expired")]
    dispatcher.check()


def test_a_waiting_action_expires_at_its_deadline_and_a_granted_one_does_not() -> None:
    dispatcher = serving(QuotaLimits((1.0,)))
    assert granted(submit(dispatcher, 0.0, holding("a", 5.0), holding("b", 7.0, seq=1))) == ["a"]
    assert dispatcher.next_wake_s == 7.0, "a is granted"
    assert dispatcher.handle(6.9, TickPassed()) == []
    assert answered(dispatcher.handle(7.0, TickPassed())) == [("b", "expired")]
    commands = dispatcher.handle(9.0, TickPassed())
    assert not [one for one in commands if isinstance(one, Revoke | AnswerAction)], "a is held by its caller"
    assert dispatcher.next_wake_s == math.inf


def test_what_cannot_be_refilled_in_time_is_answered_at_once() -> None:
    dispatcher = serving(QuotaLimits((), (Rate(1.0, 10.0),)))
    assert granted(submit(dispatcher, 0.0, holding("a", 5.0))) == ["a"]
    end(dispatcher, 0.5, "a")
    assert answered(submit(dispatcher, 1.0, holding("b", 9.9, seq=1))) == [("b", "expired")]
    assert submit(dispatcher, 1.0, holding("c", 10.0, seq=2)) == [], "its refill comes in time"
    assert granted(dispatcher.handle(10.0, TickPassed())) == ["c"]


def test_a_learned_amount_that_cannot_be_refilled_in_time_is_answered_at_once() -> None:
    dispatcher = serving(QuotaLimits((), (Rate(10.0, 10.0),)))
    dispatcher.handle(0.0, AmountRestored(("ada", "t", "search"), Estimate.of((8.0,))))
    assert granted(submit(dispatcher, 0.0, holding("a", 5.0, amount=LEARNED))) == ["a"]
    end(dispatcher, 0.0, "a")
    assert answered(submit(dispatcher, 0.0, holding("b", 5.9, seq=1, amount=LEARNED))) == [("b", "expired")]
    assert submit(dispatcher, 0.0, holding("c", 6.0, seq=2, amount=LEARNED)) == [], "its refill comes in time"
    waiting = dispatcher.survey(0.0).quotas["search"]
    assert (waiting.tenants["ada"].amount, waiting.free_s) == (8.0, 6.0)


def test_what_holders_may_give_back_in_time_is_waited_for() -> None:
    dispatcher = serving(QuotaLimits((), (Rate(1000.0, 60.0),)))
    assert granted(submit(dispatcher, 0.0, holding("a", 5.0, amount=1000.0))) == ["a"]
    waiting = holding("b", 20.0, seq=1, amount=800.0)
    assert submit(dispatcher, 0.0, waiting) == [], "a may give back all"
    assert granted(end(dispatcher, 1.0, "a", search=10.0)) == ["b"]


def test_what_holders_do_not_give_back_expires_at_the_deadline() -> None:
    dispatcher = serving(QuotaLimits((), (Rate(1000.0, 60.0),)))
    submit(dispatcher, 0.0, holding("a", 5.0, amount=600.0))
    end(dispatcher, 0.0, "a")
    submit(dispatcher, 0.0, holding("b", 5.0, seq=1, amount=400.0))
    late = holding("c", 2.9, seq=2, amount=450.0)
    assert answered(submit(dispatcher, 0.0, late)) == [("c", "expired")], "550 at most are missing until then"
    assert submit(dispatcher, 0.0, holding("d", 9.0, seq=3, amount=450.0)) == []
    assert answered(dispatcher.handle(9.0, TickPassed())) == [("d", "expired")]


def test_a_budget_that_is_held_is_waited_for_and_one_that_is_spent_is_not() -> None:
    dispatcher = serving(QuotaLimits((), (Rate(50.0),)))
    assert granted(submit(dispatcher, 0.0, holding("a", 5.0, amount=50.0))) == ["a"]
    assert submit(dispatcher, 0.0, holding("b", 20.0, seq=1, amount=10.0)) == [], "a may give back all"
    outlook = dispatcher.quota_outlook({"search": 10.0}, 0.0)
    assert (outlook.never, outlook.free_at_s) == ("", math.inf)
    assert answered(submit(dispatcher, 0.0, holding("c", 0.0, seq=2, amount=10.0))) == [("c", "expired")]
    assert granted(end(dispatcher, 1.0, "a", search=1.0)) == ["b"]
    end(dispatcher, 2.0, "b", search=40.0)
    assert answered(submit(dispatcher, 2.0, holding("d", 20.0, seq=3, amount=10.0))) == [("d", "refused")]


def test_a_probe_that_is_under_way_is_waited_for() -> None:
    dispatcher = serving(QuotaLimits((10.0,)))
    for number in range(5):
        submit(dispatcher, 0.0, holding(f"f{number}", 5.0, seq=number, resource="calls"))
        end(dispatcher, 0.0, f"f{number}", "failed")
    assert answered(submit(dispatcher, 0.0, holding("a", 2.0, seq=5))) == [("a", "expired")], "it is open for 4 s"
    assert granted(submit(dispatcher, 5.0, holding("probe", 9.0, seq=6, resource="calls"))) == ["probe"]
    assert dispatcher.quota_outlook({"search": 1.0}, 5.0).free_at_s > 8.0
    assert submit(dispatcher, 5.0, holding("b", 8.0, seq=7)) == []
    assert granted(end(dispatcher, 7.0, "probe", "ok")) == ["b"]


def test_the_time_of_a_refill_does_not_count_what_is_stuck() -> None:
    dispatcher = serving(QuotaLimits((), (Rate(1.0, 1.0),)))
    lacking = replace(HOLDING, quotas={"search": 1.0, "absent": 1.0})
    stuck = [replace(request(f"s{number}", lacking, seq=number), deadline_s=900.0) for number in range(60)]
    assert submit(dispatcher, 0.0, *stuck) == []
    assert granted(submit(dispatcher, 0.0, holding("a", 5.0, seq=60))) == ["a"]
    assert submit(dispatcher, 0.0, holding("b", 5.0, seq=61)) == []
    assert dispatcher.quota_outlook({"search": 1.0}, 0.0).free_at_s == 2.0, "a and b are ahead"
    dispatcher.handle(0.0, QuotaSet("absent", QuotaLimits((100.0,))))
    dispatcher.check()
    assert dispatcher.quota_outlook({"search": 1.0}, 0.0).free_at_s == 62.0
    dispatcher.handle(0.0, QuotaSet("absent", None), TickPassed())
    dispatcher.check()
    for number in range(60):
        dispatcher.handle(0.0, ActionCancelled(f"s{number}", "no"))
    dispatcher.check()
    assert dispatcher.quota_outlook({"search": 1.0}, 0.0).free_at_s == 2.0


def test_a_deadline_of_now_is_granted_at_once_or_never() -> None:
    dispatcher = serving(QuotaLimits((1.0,)))
    assert granted(submit(dispatcher, 3.0, holding("a", 3.0))) == ["a"]
    assert answered(submit(dispatcher, 3.0, holding("b", 3.0, seq=1))) == [("b", "expired")]


def test_what_can_never_be_given_is_refused() -> None:
    dispatcher = serving(QuotaLimits((1.0,)))
    assert answered(submit(dispatcher, 0.0, holding("a", 5.0, amount=2.0))) == [("a", "refused")]


def test_a_new_leader_applies_no_deadline_before_it_knows_what_is_held() -> None:
    dispatcher = Dispatcher(specs=SPECS)
    dispatcher.handle(100.0, QuotaSet("search", QuotaLimits((1.0,))))
    requests = [holding("held", 5.0), holding("late", 6.0, seq=1), holding("waits", 200.0, seq=2)]
    assert submit(dispatcher, 100.0, *requests) == []
    assert dispatcher.handle(100.0, TickPassed()) == []
    assert not dispatcher.unfinished, "else the leader would not wait for the inventory"
    dispatcher.handle(100.0, ActionRestored("held", 0, 1, (), "n"))
    dispatcher.handle(100.0, JOINED)
    commands = dispatcher.handle(100.1, InventoryReported("n", "1", {"held": HeldGrant(0, 1, 50.0, {"cores": 1})}))
    dispatcher.check()
    assert (answered(commands), granted(commands)) == ([("late", "expired")], [])
    assert dispatcher.next_wake_s == 200.0
