"""Recent calls in memory: the log of a failed call replays from their state, within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.proxy.leader import recent_calls
from services.proxy.leader.recent_calls import RecentCalls
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import (
    AttemptsEnded,
    InventoryReported,
    NodeJoined,
    RequestsSubmitted,
    Stimulus,
    TickPassed,
)
from shared.policy.model.formulation import Command, Grant, Request, Work
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from treadle.lab.evaluations.dispatch_decisions import DispatchComparison, compare_dispatch

WORK = Work("run", "code.run", "cores@default", {"cores": 1}, 10.0, True)


def waiting(number: int) -> Request:
    return Request(f"w{number}", "ada", "t", "", (1, number), (WORK,), 9e9)


class KeptMesh:
    """A dispatcher with one node, whose calls are kept."""

    def __init__(self, folder: Path | None) -> None:
        self.dispatcher = Dispatcher()
        self.recent = RecentCalls(folder, 7, self.dispatcher)
        self.now = 1000.0
        self.handle(NodeJoined("n", "1", "default", {"cores": 2}, frozenset({"code.run"})))
        self.handle(InventoryReported("n", "1", {}))

    def handle(self, *given: Stimulus) -> list[Command]:
        self.now += 0.01
        commands = self.dispatcher.handle(self.now, *given)
        self.recent.record(self.now, given, commands)
        return commands

    def work(self, count: int) -> None:
        for number in range(count):
            new = Request(f"a{self.now}-{number}", "ada", "t", "", (1, number), (WORK,), 9e9)
            for grant in self.handle(RequestsSubmitted((new,))):
                assert isinstance(grant, Grant)
                result = AttemptResult("ok", True, output=b'"secret"')
                self.handle(AttemptsEnded((Ended(grant.action, "n", grant.attempt, 0, result),)))

    def failed(self) -> tuple[Path, DispatchComparison]:
        path = self.recent.failed(self.now, (TickPassed(),))
        assert path is not None
        return path, compare_dispatch(path)


@pytest.mark.parametrize(("values", "continued"), [(10_000, False), (50, True)])
def test_a_failed_call_writes_the_log_from_the_newest_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: int, continued: bool
) -> None:
    monkeypatch.setattr(recent_calls, "FEWEST_CALLS", values)
    mesh = KeptMesh(tmp_path / "log")
    mesh.work(40)
    assert not (tmp_path / "log").exists()
    path, made = mesh.failed()
    assert path.name == "failed-dispatch-7-1.log"
    assert b"secret" not in path.read_bytes()
    assert made.continued == continued
    assert made.first is not None
    assert (made.different, made.first.call, made.first.then) == (1, made.calls, "raised"), "this policy does not raise"


def test_calls_beyond_the_bound_are_not_kept_until_a_state_can_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FEWEST_CALLS": 20, "MOST_CALLS": 40, "QUICKLY_COPIED": -1, "MOST_COPIED": -1}.items():
        monkeypatch.setattr(recent_calls, name, value)
    mesh = KeptMesh(tmp_path)
    mesh.work(40)
    assert mesh.recent.failed(mesh.now, (TickPassed(),)) is None
    monkeypatch.setattr(recent_calls, "MOST_COPIED", 10)
    mesh.work(2)
    _, made = mesh.failed()
    assert made.continued
    assert made.different == 1


@pytest.mark.parametrize(("unanswered", "soon"), [(0, True), (900, False)])
def test_a_small_state_is_copied_early_and_a_large_one_seldom(tmp_path: Path, unanswered: int, soon: bool) -> None:
    mesh = KeptMesh(tmp_path)
    mesh.handle(RequestsSubmitted(tuple(waiting(number) for number in range(unanswered))))
    for _ in range(2 * recent_calls.FEWEST_CALLS):
        mesh.handle(TickPassed())
    _, made = mesh.failed()
    assert made.continued
    assert (made.calls < recent_calls.FEWEST_CALLS) == soon


def test_without_a_folder_the_log_is_in_a_temporary_one() -> None:
    path, made = KeptMesh(None).failed()
    assert made.calls == 3
    path.unlink()
    path.parent.rmdir()
