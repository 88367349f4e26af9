"""Brakes of quotas in the dispatcher: waiting work is woken by time or by an answer, and the reason is shown."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import pytest
from msgspec.structs import replace

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import BrakeRestored, QuotaSet
from shared.policy.dispatch.stimuli import TickPassed
from shared.policy.model.brakes import Brake
from shared.policy.model.formulation import AnswerAction, Command, Grant, Request
from shared.policy.model.quotas import QuotaLimits
from shared.policy.model.reports import Ended
from shared.policy.model.results import Feedback, UpstreamAnswer
from tests.shared.policy.dispatch.leading import beat, ended, leading, submit
from tests.shared.policy.strategies import reported, request, submitted, work

CALLING = replace(work("calls@cpu", timeout_s=1e4), quotas={"search": 1.0})
SILENT = replace(work(timeout_s=1e4), quotas={"search": 1.0})
"""Work that reports no answers: a program, or a lease."""


def calling(*names: str) -> list[Request]:
    return [replace(request(name, CALLING, seq=at), deadline_s=1e6) for at, name in enumerate(names)]


def provider(*names: str, most: float = 1.0) -> tuple[Dispatcher, list[Grant]]:
    dispatcher = leading("n", cores=64, calls=64)
    dispatcher.handle(0.0, QuotaSet("search", QuotaLimits((most,))))
    return dispatcher, submit(dispatcher, *calling(*names))


def answered(grant: Grant, answer: UpstreamAnswer, not_before_s: float = 0.0, reason: str = "") -> Ended:
    end = ended(grant, passed=True)
    feedback = (Feedback("search", answer, not_before_s, reason),)
    return replace(end, result=msgspec.structs.replace(end.result, feedback=feedback))


def tick(dispatcher: Dispatcher, now: float) -> list[Command]:
    beat(dispatcher, now)
    return dispatcher.handle(now, TickPassed())


def grants(commands: list[Command]) -> list[Grant]:
    return [one for one in commands if isinstance(one, Grant)]


def test_a_named_time_wakes_the_work_that_waits() -> None:
    dispatcher, (first,) = provider("first", "second")
    assert dispatcher.next_wake_s == math.inf
    assert not grants(dispatcher.handle(1.0, reported(answered(first, "pushed-back", 20.0))))
    wake_s = dispatcher.next_wake_s
    assert 21.0 <= wake_s <= 22.0
    assert dispatcher.cluster.queues.lanes.asleep, "no round looks at it before"
    assert not grants(tick(dispatcher, wake_s - 0.01))
    assert [one.action for one in grants(tick(dispatcher, wake_s))] == ["second"]
    dispatcher.check()


def test_a_time_that_moves_on_is_waited_for() -> None:
    dispatcher, (first, second) = provider("first", "second", "third", most=2.0)
    dispatcher.handle(1.0, reported(answered(first, "ok", 5.0)))
    assert 6.0 <= dispatcher.next_wake_s <= 7.0
    dispatcher.handle(2.0, reported(answered(second, "ok", 50.0)))
    assert 52.0 <= dispatcher.next_wake_s <= 53.0
    assert [one.action for one in grants(tick(dispatcher, dispatcher.next_wake_s))] == ["third"]


def test_calls_at_once_are_woken_by_ends() -> None:
    names = [f"a{number:02}" for number in range(40)]
    dispatcher, running = provider(*names, most=20.0)
    assert len(running) == 20
    dispatcher.handle(1.0, reported(*(answered(one, "pushed-back") for one in running[:2])))
    wake_s = dispatcher.next_wake_s
    tick(dispatcher, wake_s)
    assert dispatcher.brakes()["search"].most == 18
    assert len(dispatcher.cluster.quotas.holds) == 18
    assert dispatcher.next_wake_s == math.inf
    (next_,) = grants(dispatcher.handle(wake_s + 1.0, reported(answered(running[2], "ok"))))
    assert next_.action == "a20"
    dispatcher.check()


def test_work_without_the_quota_is_not_held_back() -> None:
    dispatcher, (first,) = provider("first", "second")
    dispatcher.handle(1.0, reported(answered(first, "exhausted", reason="no credit")))
    (plain,) = submit(dispatcher, request("plain", seq=9))
    assert plain.action == "plain"


def test_exhausted_work_is_held_with_its_reason_and_resumes_after_a_top_up() -> None:
    dispatcher, (first,) = provider("first", "second", "third")
    dispatcher.handle(1.0, reported(answered(first, "exhausted", reason="no credit")))
    reasons = dispatcher.waiting_reasons(2.0).actions
    assert {name for name, _ in reasons} == {"second", "third"}
    wait, text = reasons["second", 0]
    assert (wait, "the provider of quota 'search' is out of credit: no credit" in text) == ("provider", True)
    (probe,) = grants(tick(dispatcher, dispatcher.next_wake_s))
    now = dispatcher.cluster.quotas.holds[probe.hold.key].at_s if probe.hold else 0.0
    assert not grants(dispatcher.handle(now + 1.0, reported(answered(probe, "exhausted", reason="no credit"))))
    limits = QuotaLimits((1.0,))
    assert not grants(dispatcher.handle(now + 2.0, QuotaSet("search", limits))), "a new leader reads it"
    assert [one.action for one in grants(dispatcher.handle(now + 2.0, QuotaSet("search", limits, now + 2.0)))] == [
        "third"
    ]
    assert not dispatcher.waiting_reasons(now + 3.0).actions
    dispatcher.check()


def test_a_success_of_the_probe_lets_all_continue() -> None:
    dispatcher, (first,) = provider("first", "second", "third")
    dispatcher.handle(1.0, reported(answered(first, "exhausted")))
    (probe,) = grants(tick(dispatcher, dispatcher.next_wake_s))
    found = grants(dispatcher.handle(60.0, reported(answered(probe, "ok"))))
    assert [one.action for one in found] == ["third"]


@pytest.mark.parametrize(
    ("brake", "words"),
    [
        (Brake(not_before_s=30.0, reason="HTTP 429"), "wants no call before 00:00:30 UTC: HTTP 429"),
        (
            Brake(mode="open", probe_s=40.0, reason="HTTP 500"),
            "fails: HTTP 500; one call asks it again at 00:00:40 UTC",
        ),
        (Brake(mode="exhausted", probe_s=50.0), "is out of credit; one call asks it again at 00:00:50 UTC"),
    ],
)
def test_a_restored_brake_holds_work_back_and_wakes_it(brake: Brake, words: str) -> None:
    dispatcher = leading("n", calls=4)
    dispatcher.handle(0.0, QuotaSet("search", QuotaLimits((1.0,))))
    dispatcher.handle(0.0, BrakeRestored("search", brake))
    assert not submit(dispatcher, *calling("a"))
    assert dispatcher.waiting_reasons(1.0).actions["a", 0].text == f"the provider of quota 'search' {words}"
    assert dispatcher.next_wake_s == brake.free_s(0.0)
    assert grants(tick(dispatcher, dispatcher.next_wake_s))


def test_a_deadline_that_comes_meanwhile_names_the_provider() -> None:
    dispatcher, (first,) = provider("first")
    dispatcher.handle(1.0, reported(answered(first, "pushed-back", 600.0, "HTTP 429")))
    submit_late = replace(calling("late")[0], deadline_s=100.0)
    submit(dispatcher, submit_late)
    (answer,) = [one for one in dispatcher.handle(101.0, TickPassed()) if isinstance(one, AnswerAction)]
    assert "the provider of quota 'search' wants no call before" in answer.reason


def test_an_outcome_that_is_read_again_counts_once() -> None:
    dispatcher, (first,) = provider("first")
    for _ in range(3):
        dispatcher.handle(1.0, reported(answered(first, "failed")))
    assert dispatcher.brakes()["search"].failures == 1


def silent(*names: str) -> list[Request]:
    return [replace(request(name, SILENT, seq=100 + at), deadline_s=1e6) for at, name in enumerate(names)]


@pytest.mark.parametrize("mode", ["open", "exhausted"])
def test_work_that_reports_no_answers_waits_for_the_time_of_the_probe_and_is_none(
    mode: Literal["open", "exhausted"],
) -> None:
    dispatcher, _ = provider(most=3.0)
    dispatcher.handle(0.0, BrakeRestored("search", Brake(mode=mode, probe_s=40.0)))
    assert not submit(dispatcher, *silent("a", "b", "c", "d"))
    assert dispatcher.next_wake_s == 40.0
    begun = grants(tick(dispatcher, 40.0))
    assert [one.action for one in begun] == ["a", "b", "c"], "as many as the quota allows"
    assert dispatcher.brakes()["search"].state(40.0) == ("half-open" if mode == "open" else mode)
    (next_,) = grants(dispatcher.handle(41.0, reported(ended(begun[0]))))
    assert next_.action == "d"
    dispatcher.check()


def test_a_call_is_the_probe_beside_work_that_reports_no_answers() -> None:
    dispatcher, _ = provider(most=3.0)
    dispatcher.handle(0.0, BrakeRestored("search", Brake(mode="open", probe_s=40.0)))
    submit(dispatcher, *silent("a"))
    assert [one.action for one in grants(tick(dispatcher, 40.0))] == ["a"]
    (probe,) = grants(dispatcher.handle(41.0, submitted(*calling("call"))))
    assert dispatcher.brakes()["search"].probe.startswith("call/")
    assert not grants(dispatcher.handle(41.0, submitted(*silent("b")))), "its answer decides"
    assert [one.action for one in grants(dispatcher.handle(42.0, reported(answered(probe, "ok"))))] == ["b"]
    assert dispatcher.brakes().get("search", Brake()).state(42.0) == "ok"
    dispatcher.check()


def test_work_that_reports_no_answers_passes_a_head_that_waits_for_another_quota() -> None:
    dispatcher, _ = provider(most=10.0)
    dispatcher.handle(0.0, QuotaSet("other", QuotaLimits((1.0,))))
    submit(dispatcher, request("holder", replace(SILENT, quotas={"other": 1.0}), seq=1))
    dispatcher.handle(0.0, BrakeRestored("search", Brake(mode="open", probe_s=1.0)))
    both = replace(SILENT, quotas={"other": 1.0, "search": 1.0})
    beat(dispatcher, 2.0)
    assert not grants(dispatcher.handle(2.0, submitted(request("head", both, seq=2))))
    assert len(grants(dispatcher.handle(2.0, submitted(*silent("a", "b"))))) == 2
