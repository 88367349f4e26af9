"""Recording of the dispatcher's stimuli: segments that replay by themselves, within bounds."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from services.proxy.leader import recording
from services.proxy.leader.recording import DispatchRecorder
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import (
    AttemptsEnded,
    AttemptStarted,
    InventoryReported,
    NodeJoined,
    RequestsSubmitted,
    Stimulus,
    TickPassed,
)
from shared.policy.model.formulation import Command, Grant, Request, Work
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from tests.shared.bus.soon import soon
from treadle.lab.evaluations.dispatch_decisions import compare_dispatch

WORK = Work("run", "code.run", "cores@default", {"cores": 1}, 10.0, True)


class RecordedMesh:
    """A dispatcher with one node, recorded."""

    def __init__(self, folder: Path, most_bytes: int = 1 << 20, epoch: int = 1) -> None:
        self.dispatcher = Dispatcher()
        self.recorder = DispatchRecorder(folder, epoch, self.dispatcher, most_bytes=most_bytes)
        self.now = 1000.0
        self.calls = 0
        self._made = 0
        self.handle(NodeJoined("n", "1", "default", {"cores": 2}, frozenset({"code.run"})))
        self.handle(InventoryReported("n", "1", {}))

    def handle(self, *given: Stimulus) -> list[Command]:
        self.now += 0.01
        commands = self.dispatcher.handle(self.now, *given)
        self.recorder.record(self.now, given, commands)
        self.calls += 1
        return commands

    def work(self, count: int) -> None:
        """Submit so many actions; each waits, starts and ends."""
        for _ in range(count):
            self._made += 1
            new = Request(f"a{self._made}", "ada", "t", "", (round(1000 * self.now), 0), (WORK,), self.now + 60.0)
            self.end(self.handle(RequestsSubmitted((new,))))

    def end(self, commands: list[Command]) -> None:
        for grant in commands:
            if isinstance(grant, Grant):
                self.handle(AttemptStarted(grant.action, grant.attempt))
                result = AttemptResult("ok", True)
                self.end(
                    self.handle(
                        AttemptsEnded((Ended(grant.action, "n", grant.attempt, 0, result),)),
                    )
                )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def write(mesh: RecordedMesh) -> None:
    """Write as the loop does."""
    mesh.recorder._write()


def test_a_closed_log_replays_identically(folder: Path) -> None:
    mesh = RecordedMesh(folder)
    mesh.work(20)
    mesh.recorder.close()
    (path,) = folder.iterdir()
    made = compare_dispatch(path)
    assert (made.same, made.continued, made.torn, made.epoch) == (True, False, 0, 1)
    assert made.commands["AnswerAction ok"] == made.commands["Grant"] == 20
    assert made.stimuli["AttemptsEnded"] == 20


def test_a_full_segment_is_continued_in_another_that_begins_with_the_state(folder: Path) -> None:
    mesh = RecordedMesh(folder, most_bytes=60_000)
    for _ in range(20):
        mesh.work(10)
        write(mesh)
    mesh.recorder.close()
    paths = sorted(folder.iterdir())
    assert [path.name for path in paths][-1] > "dispatch-1-1.log"
    assert len(paths) == 2
    made = [compare_dispatch(path) for path in paths]
    assert [one.same for one in made] == [True, True]
    assert any(one.continued for one in made)
    assert sum(path.stat().st_size for path in paths) <= 60_000 + 30_000, "the states come on top"


def test_a_large_state_is_not_copied_and_the_log_stays_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_COPIED", 5)
    mesh = RecordedMesh(folder, most_bytes=30_000)
    many = tuple(Request(f"w{at}", "ada", "t", "", (1, at), (WORK,), 9e9) for at in range(40))
    mesh.handle(RequestsSubmitted(many))
    for _ in range(200):
        mesh.handle(TickPassed())
        mesh.work(0)
        write(mesh)
    while mesh.dispatcher.unanswered > 4:
        for grant in [f"w{at}" for at in range(40) if (one := mesh.dispatcher.action(f"w{at}")) and one.node]:
            state = mesh.dispatcher.action(grant)
            assert state is not None
            mesh.handle(AttemptsEnded((Ended(grant, "n", state.attempt, 0, AttemptResult("ok", True)),)))
        write(mesh)
    mesh.handle(TickPassed())
    write(mesh)
    mesh.handle(TickPassed())
    mesh.recorder.close()
    assert all(compare_dispatch(path).same for path in folder.iterdir())
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 30_000 + 30_000


def test_calls_that_cannot_be_written_in_time_are_dropped_and_a_new_segment_begins(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MOST_PENDING", 30)
    mesh = RecordedMesh(folder)
    mesh.work(30)
    write(mesh)
    mesh.work(5)
    mesh.recorder.close()
    made = [compare_dispatch(path) for path in sorted(folder.iterdir())]
    assert [one.same for one in made] == [True, True]
    assert [one.continued for one in made] == [False, True]
    assert [one.calls for one in made] == [30, 14], "15, of which the first only leads to the state"


def test_a_segment_has_no_gap_although_no_state_can_be_copied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are dropped while too many actions are unanswered for a copy of the state."""
    monkeypatch.setattr(recording, "MOST_PENDING", 10)
    monkeypatch.setattr(recording, "MOST_COPIED", -1)
    mesh = RecordedMesh(folder)
    mesh.work(20)
    write(mesh)
    mesh.work(20)
    assert mesh.recorder.failed(mesh.now, (TickPassed(),)) is None, "the calls before the failure are missing"
    (path,) = folder.iterdir()
    made = compare_dispatch(path)
    assert (made.same, made.calls) == (True, 10)


class InterleavedQueue(deque[Any]):
    """The recorder's queue. The thread writes just before each append, as late as it can."""

    def __init__(self, recorder: DispatchRecorder) -> None:
        super().__init__(recorder._pending)
        self._recorder = recorder

    def append(self, item: Any) -> None:
        writing = threading.Thread(target=self._recorder._write)
        writing.start()
        writing.join()
        super().append(item)


def test_each_call_is_recorded_once_if_the_thread_writes_while_one_is_added(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "KEPT", 1000)
    mesh = RecordedMesh(folder, most_bytes=12_000)
    mesh.recorder._pending = InterleavedQueue(mesh.recorder)
    mesh.work(50)
    mesh.recorder.close()
    made = [compare_dispatch(path) for path in folder.iterdir()]
    assert all(one.same for one in made)
    assert sum(one.calls for one in made) == mesh.calls
    assert len(made) == sum(one.continued for one in made) + 1 > 3
    assert all(one.calls for one in made), "no state was copied twice"


def test_a_failure_keeps_the_log_and_raises_again_in_the_replay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = RecordedMesh(folder)
    mesh.work(3)
    wrong = AttemptsEnded((Ended("a9", "n", 1, 0, AttemptResult("ok", True)),))
    mesh.handle(RequestsSubmitted((Request("a9", "ada", "t", "", (1, 0), (WORK,), 9e9),)))
    handle = Dispatcher.handle

    def broken(self: Dispatcher, now: float, *given: Stimulus) -> list[Command]:
        assert wrong not in given, "more given back than taken"
        return handle(self, now, *given)

    monkeypatch.setattr(Dispatcher, "handle", broken)
    path = mesh.recorder.failed(mesh.now, (wrong,))
    assert path is not None
    assert path.name == "failed-dispatch-1-1.log"
    made = compare_dispatch(path)
    assert made.same
    assert made.raised.startswith("AssertionError: more given back than taken")
    monkeypatch.undo()
    again = compare_dispatch(path)
    assert again.first is not None
    assert again.first.then == "raised", "the policy no longer raises, which is a difference"


def test_a_call_that_cannot_be_encoded_ends_the_recording_alone(folder: Path) -> None:
    mesh = RecordedMesh(folder)
    mesh.recorder.record(mesh.now, (TickPassed(),), [object()])  # type: ignore[list-item]
    write(mesh)
    mesh.work(1)
    assert mesh.recorder.failed(mesh.now, (TickPassed(),)) is None
    mesh.recorder.close()


def test_segments_of_former_terms_are_deleted_and_failures_stay(folder: Path) -> None:
    for epoch in (8, 9, 10, 11):
        mesh = RecordedMesh(folder, epoch=epoch)
        if epoch == 8:
            mesh.recorder.failed(mesh.now, (TickPassed(),))
        else:
            mesh.recorder.close()
    assert sorted(path.name for path in folder.iterdir()) == [
        "dispatch-10-1.log", "dispatch-11-1.log", "failed-dispatch-8-1.log",
    ]  # fmt: skip


async def test_the_loop_writes_and_a_disk_that_fails_ends_the_recording_alone(folder: Path) -> None:
    mesh = RecordedMesh(folder)
    running = asyncio.create_task(mesh.recorder.run())
    mesh.work(2)

    async def is_written() -> bool:
        return compare_dispatch(folder / "dispatch-1-1.log").calls >= 8

    await soon(is_written)
    mesh.recorder._segment.close()
    mesh.recorder._segment._file = (folder / "dispatch-1-1.log").open("rb")
    mesh.work(2)
    async with asyncio.timeout(20):
        await running
    mesh.work(2)
    mesh.recorder.close()
