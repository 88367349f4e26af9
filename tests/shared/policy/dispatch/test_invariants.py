"""Invariants that are checked in production: each is found after a state was corrupted or a decision was mutated.

`python -O` drops assertions, so each error is an `InvariantError` that is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from shared.policy.dispatch import dispatcher as module
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.invariants import InvariantError
from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.scheduling_round import SchedulingRound, schedule
from shared.policy.dispatch.stimuli import AttemptParked, ResumeRequested
from shared.policy.model.formulation import AnswerAction, Command, EnvironmentNeed, Grant
from shared.policy.model.quotas import QuotaLimits
from shared.policy.model.reports import HeldGrant
from shared.policy.resources.ledger import Node
from shared.policy.resources.quotas import Quotas
from tests.shared.policy.dispatch.leading import ended, leading, meet, report, submit
from tests.shared.policy.strategies import SPECS, request, work

TAKING = replace(work(), quotas={"model": 1.0})


def mutate(monkeypatch: pytest.MonkeyPatch, change: Callable[[list[Command]], list[Command]]) -> None:
    """Change the commands of scheduling rounds."""
    monkeypatch.setattr(module, "schedule", lambda *round_of: change(schedule(*round_of)))


def test_an_answer_of_an_action_that_stays_unanswered_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = leading("n")
    mutate(monkeypatch, lambda commands: [*commands, AnswerAction("a", "ok", "", ())])
    with pytest.raises(InvariantError, match="a is answered 'ok' twice, or not removed"):
        submit(dispatcher, request("a"))


def test_a_second_answer_in_one_call_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = leading("n")
    (grant,) = submit(dispatcher, request("a"))
    mutate(monkeypatch, lambda commands: [*commands, AnswerAction("a", "ok", "", ())])
    with pytest.raises(InvariantError, match="a is answered 'ok' twice"):
        report(dispatcher, ended(grant))


def test_a_grant_with_an_old_serial_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its order against inventories would be wrong."""
    dispatcher = leading("n")
    mutate(monkeypatch, lambda commands: _with_serial(dispatcher, 0, commands))
    with pytest.raises(InvariantError, match="a is granted on n, attempt 1, and was granted before"):
        submit(dispatcher, request("a"))


def _with_serial(dispatcher: Dispatcher, serial: int, commands: list[Command]) -> list[Command]:
    for action in dispatcher.registry.actions.values():
        action.serial = serial
    return commands


def test_a_grant_of_an_earlier_call_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = leading("n")
    (grant,) = submit(dispatcher, request("a"))
    mutate(monkeypatch, lambda commands: [*commands, grant])
    with pytest.raises(InvariantError, match="a is granted on n, attempt 1, and was granted before"):
        submit(dispatcher, request("b"))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"action": "b"}, "b is granted, and is not unanswered"),
        ({"node": "m"}, "a is granted on m, which is absent or not ready"),
        ({"attempt": 2}, "a is granted on n, attempt 2, and was granted before: granted on 'n', attempt 1"),
    ],
)
def test_a_grant_that_is_not_in_the_state_is_found(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], why: str
) -> None:
    dispatcher = leading("n")
    mutate(
        monkeypatch,
        lambda commands: [one._replace(**changed) if isinstance(one, Grant) else one for one in commands],
    )
    with pytest.raises(InvariantError, match=why):
        submit(dispatcher, request("a"))


def test_units_beyond_the_capacity_are_found() -> None:
    """The number of free units was corrupted."""
    dispatcher = leading("n", cores=1)
    submit(dispatcher, request("a"))
    cores: Any = dispatcher.cluster.nodes.present["n"].resources["cores"]
    cores.free = 5
    dispatcher.cluster.nodes.rankings.touch("n")
    with pytest.raises(InvariantError, match=r"n: more cores granted than exist: PlainUnits\(2 of 1 used"):
        submit(dispatcher, request("b"))


def test_units_of_an_environment_beyond_the_capacity_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = leading("n")
    need = EnvironmentNeed("t", "run", {"memory": 6})
    monkeypatch.setattr(Node, "could_ever", lambda *_: True)
    monkeypatch.setattr(Node, "has_free", lambda *_: True)
    with pytest.raises(InvariantError, match="n: more memory granted than exist"):
        submit(dispatcher, replace(request("a"), need=need))


def test_units_with_which_an_action_continues_beyond_the_capacity_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = leading("n", cores=1)
    need = EnvironmentNeed("t", "run", {})
    (grant,) = submit(dispatcher, replace(request("a"), need=need))
    dispatcher.handle(1.0, AttemptParked("a", grant.attempt))
    submit(dispatcher, request("b"))
    monkeypatch.setattr(Node, "has_free", lambda *_: True)
    with pytest.raises(InvariantError, match="n: more cores granted than exist"):
        dispatcher.handle(2.0, ResumeRequested("a"))


def test_an_exceeded_concurrency_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = leading("n")
    dispatcher.handle(0.0, QuotaSet("model", QuotaLimits((1.0,))))
    monkeypatch.setattr(Quotas, "lacking", lambda *_: None)
    with pytest.raises(InvariantError, match="is granted, and the quota 'model' exceeds its concurrency"):
        submit(dispatcher, request("a", TAKING, seq=1), request("b", TAKING, seq=2))


def test_a_grant_without_its_hold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = leading("n")
    dispatcher.handle(0.0, QuotaSet("model", QuotaLimits((1.0,))))

    def mutated(commands: list[Command]) -> list[Command]:
        dispatcher.cluster.quotas.holds.clear()
        return commands

    mutate(monkeypatch, mutated)
    with pytest.raises(InvariantError, match="a is granted without its quotas"):
        submit(dispatcher, request("a", TAKING))


def test_a_node_that_reports_more_than_exists_ends_no_term() -> None:
    dispatcher = leading("m")
    meet(dispatcher, "n", {"unknown": HeldGrant(0, 1, 0.0, {"cores": 9, "memory": 9})}, cores=8)
    granted = submit(dispatcher, *(request(f"r{number}", seq=number) for number in range(6)))
    assert {one.node for one in granted} == {"m"}


def test_a_failed_round_names_the_action_that_it_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inventory names no action, but lets grants be placed."""
    dispatcher = Dispatcher(specs=SPECS)
    submit(dispatcher, *(request(name, seq=at) for at, name in enumerate(("a", "poison", "b"))))
    grant = SchedulingRound._grant

    def mutated(self: SchedulingRound, lane: Any, action: Any, *rest: Any, **more: Any) -> None:
        assert action.request.id != "poison", "no units"
        grant(self, lane, action, *rest, **more)

    monkeypatch.setattr(SchedulingRound, "_grant", mutated)
    with pytest.raises(InvariantError, match="poison: AssertionError: no units") as failed:
        meet(dispatcher, "n")
    assert failed.value.action == "poison"
