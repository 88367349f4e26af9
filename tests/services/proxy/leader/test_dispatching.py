"""Calls of the dispatcher by a leader: what a failed one names, and how suspects are passed on."""

from __future__ import annotations

from typing import Any

import pytest

from services.proxy.leader.dispatching import MOST_FAILED, DispatchFailed, GuardedDispatcher, Suspects
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import (
    ActionCancelled,
    AttemptsEnded,
    InventoryReported,
    RequestsSubmitted,
    Stimulus,
    TickPassed,
)
from shared.policy.model.formulation import Request, Work
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult

pytestmark = pytest.mark.usefixtures("captured_logs")

WORK = Work("run", "code.run", "cores@default", {"cores": 1}, 10.0, True)


def request(name: str) -> Request:
    return Request(name, "ada", "t", "", (1000, 1), (WORK,), 2000.0)


def end(name: str) -> Ended:
    return Ended(name, "n", 1, 0, AttemptResult("ok", True))


def test_without_suspects_all_are_passed_together() -> None:
    assert list(Suspects({}).parts("abc", str)) == [("a", "b", "c")]
    assert list(Suspects({}).parts("", str)) == []


def test_each_suspect_is_passed_alone_at_its_place() -> None:
    assert list(Suspects({"b": 1, "c": 2, "x": 1}).parts("abcde", str)) == [("a",), ("b",), ("c",), ("d", "e")]


def test_an_action_is_refused_after_its_last_failed_term() -> None:
    suspects = Suspects({"few": MOST_FAILED - 1, "many": MOST_FAILED})
    assert [bool(suspects.why_refused(name)) for name in ("other", "few", "many")] == [False, False, True]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (RequestsSubmitted((request("a"), request("b"))), ("a", "b")),
        (AttemptsEnded((end("a"), end("b"), end("a"))), ("a", "b")),
        (ActionCancelled("a", "not wanted"), ("a",)),
        (TickPassed(), ()),
    ],
)
def test_a_failed_call_names_the_actions_of_its_stimuli(
    monkeypatch: pytest.MonkeyPatch, given: Stimulus, named: tuple[str, ...]
) -> None:
    def broken(*_: Any) -> Any:
        raise AssertionError("more given back than taken")

    monkeypatch.setattr(Dispatcher, "handle", broken)
    with pytest.raises(DispatchFailed) as failed:
        GuardedDispatcher(Dispatcher(), None, Suspects({"b": 1})).handle(1000.0, (given,))
    assert failed.value.suspects == named


def test_a_failed_call_does_not_name_an_action_that_is_refused_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next term would fail in the same way, so the process must end."""

    def broken(*_: Any) -> Any:
        raise AssertionError("no units")

    monkeypatch.setattr(Dispatcher, "handle", broken)
    with pytest.raises(DispatchFailed) as failed:
        GuardedDispatcher(Dispatcher(), None, Suspects({"a": MOST_FAILED})).handle(1.0, (ActionCancelled("a", ""),))
    assert failed.value.suspects == ()


def test_a_failed_call_names_the_action_of_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inventory names no action, but lets grants be placed."""

    class ServingError(RuntimeError):
        action = "served"

    def broken(*_: Any) -> Any:
        raise ServingError

    monkeypatch.setattr(Dispatcher, "handle", broken)
    with pytest.raises(DispatchFailed) as failed:
        GuardedDispatcher(Dispatcher(), None, Suspects({})).handle(1000.0, (InventoryReported("n", "1", {}),))
    assert failed.value.suspects == ("served",)
