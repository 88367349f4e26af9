"""``treadle replay dispatch``: a leader's decisions made again from its log."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from shared.kinds.registry import all_kinds
from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import (
    AttemptsEnded,
    InventoryReported,
    NodeJoined,
    PriorityChanged,
    RequestsSubmitted,
    Stimulus,
    TickPassed,
)
from shared.policy.model.formulation import EnvironmentNeed, Grant, Request, Work
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.store.dispatch_log import DispatchLogHeader, DispatchLogReader, DispatchLogSegment, HandledCall, state_of
from treadle.cli.main import app

WORK = Work("run", "code.run", "cores@default", {"cores": 1}, 10.0, True)


def request(name: str) -> Request:
    return Request(name, "ada", "t", "", (1_000_000, 1), (WORK,), 2000.0)


STORY: tuple[Stimulus, ...] = (
    NodeJoined("n", "1", "default", {"cores": 2}, frozenset({"code.run"})),
    InventoryReported("n", "1", {}),
    RequestsSubmitted((request("a"), request("b"))),
    RequestsSubmitted((request("c"),)),
    TickPassed(),
)


def acting(name: str, trajectory: str, own: float = 0.0) -> Request:
    work = Work("act", "env.bash", "cores@default", {"cores": 1}, 10.0, False)
    need = EnvironmentNeed(trajectory, "runtime.local", {"memory_mb": 64})
    return Request(name, "ada", "t", "", (1_000_000, 1), (work,), 2000.0, priority=own, need=need)


KINDS = frozenset({"env.bash", "runtime.local"})
PRIORITIES: tuple[Stimulus, ...] = (
    NodeJoined("n", "1", "default", {"cores": 1, "memory_mb": 512}, KINDS),
    InventoryReported("n", "1", {}),
    RequestsSubmitted((acting("a", "t1"), acting("b", "t2", 1.0), acting("c", "t3", 2.0))),
    PriorityChanged("t3", -60.0),
    AttemptsEnded((Ended("a", "n", 1, 0, AttemptResult("ok", True)),)),
)


def written(
    path: Path, story: tuple[Stimulus, ...] = STORY, *, mutated: bool = False, begins: int = 0, more: int | None = None
) -> Path:
    """The log of a story, from the stimulus `begins` on. `mutated`: a grant names another node. `more`: only the
    number of commands is kept, and it is so much larger.
    """
    dispatcher = Dispatcher(specs=all_kinds().resources)
    segment = None
    for number, stimulus in enumerate(story):
        if number == begins:
            segment = DispatchLogSegment(path, 7, DispatchConfig(), state_of(dispatcher) if begins else b"")
        commands = dispatcher.handle(1000.0 + number, stimulus)
        if mutated:
            commands = [one._replace(node="m") if isinstance(one, Grant) else one for one in commands]
        if segment is not None:
            kept = commands if more is None else len(commands) + more
            segment.write([HandledCall(1000.0 + number, (stimulus,), kept)])
    assert segment is not None
    segment.close()
    return path


def replayed(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["replay", "dispatch", *map(str, arguments)])


@pytest.mark.parametrize("begins", [0, 3])
def test_a_log_made_again_is_identical(tmp_path: Path, begins: int) -> None:
    done = replayed(written(tmp_path / "dispatch-7-1.log", begins=begins))
    assert done.exit_code == 0, done.stdout
    assert f"{len(STORY) - begins} calls, " in done.stdout
    assert "all the same" in done.stdout
    assert ("continued from a state" in done.stdout) == bool(begins)


@pytest.mark.parametrize("begins", [0, 3, 4])
def test_a_changed_priority_decides_again(tmp_path: Path, begins: int) -> None:
    """4: the change is in the state with which the segment begins."""
    path = written(tmp_path / "dispatch-7-1.log", PRIORITIES, begins=begins)
    *_, last = DispatchLogReader(path).calls()
    assert isinstance(last.commands, list)
    assert [values[0] for name, values in last.commands if name == "Grant"] == ["c"]
    done = replayed(path)
    assert (done.exit_code, "all the same" in done.stdout) == (0, True), done.stdout


def test_json_counts_what_was_decided(tmp_path: Path) -> None:
    written(tmp_path / "dispatch-7-1.log")
    document = json.loads(replayed(tmp_path, "--json").stdout)
    assert document["commands"] == {"AskInventory": 1, "Grant": 2}
    assert document["stimuli"]["RequestsSubmitted"] == 2
    assert (document["calls"], document["same"], document["seconds"], document["torn_bytes"]) == (5, True, 4.0, 0)


def test_a_mutated_decision_is_found(tmp_path: Path) -> None:
    path = written(tmp_path / "a.log", mutated=True)
    done = replayed(path)
    assert done.exit_code == 1
    assert "1 are different now" in done.stdout
    assert "first difference: call 3, after 2.00 s: RequestsSubmitted" in done.stdout
    assert "'a', 'm'" in done.stdout
    assert "'a', 'n'" in done.stdout
    first = json.loads(replayed(path, "--json").stdout)["first_difference"]
    assert (first["call"], first["then"][0][1][1], first["again"][0][1][1]) == (3, "m", "n")


def test_a_log_with_the_number_of_commands_is_compared_by_it(tmp_path: Path) -> None:
    same = json.loads(replayed(written(tmp_path / "a.log", more=0), "--json").stdout)
    assert (same["same"], same["commands"]) == (True, {"AskInventory": 1, "Grant": 2})
    done = replayed(written(tmp_path / "b.log", more=1))
    assert (done.exit_code, "5 are different now" in done.stdout, "then 2 commands" in done.stdout) == (1, True, True)


@pytest.mark.parametrize("cut", [1, 3, 9])
def test_a_torn_tail_is_reported_and_the_rest_is_used(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "a.log")
    path.write_bytes(path.read_bytes()[:-cut])
    done = replayed(path)
    assert done.exit_code == 0, done.stdout
    assert "incomplete value and were not used" in done.stdout
    assert "4 calls, " in done.stdout


@pytest.mark.parametrize("content", [b"", b"no log at all", struct.pack("<I", 2) + b"\x91\x01", struct.pack("<I", 9)])
def test_a_file_that_is_no_log_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.log").write_bytes(content)
    done = replayed(tmp_path / "a.log")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert replayed(tmp_path / "missing.log").exit_code == 2
    (tmp_path / "empty").mkdir()
    assert "PROXY_STIMULUS_LOGS" in replayed(tmp_path / "empty").stderr


class Attack:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("a log has run this",))


def test_a_state_cannot_run_anything_else(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    DispatchLogSegment(path, 1, DispatchConfig(), pickle.dumps(Attack())).close()
    done = replayed(path)
    assert done.exit_code == 2
    assert "builtins.print is no part of a dispatcher's state" in done.stderr
    assert "has run this" not in done.stdout
    assert DispatchLogHeader(1, 1, DispatchConfig(), b"").dispatcher({}).unanswered == 0


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "getcwd"),
        ("builtins", "getattr"),
        ("shared.policy.order.ebf", "heapq.heapify"),
        ("shared.policy.order.ebf", "itertools"),
        ("shared.policy.model.results", "msgspec"),
        ("shared.policy.order.ebf", "dataclass"),
    ],
)
def test_a_state_that_names_what_the_policy_does_not_define_is_rejected(tmp_path: Path, module: str, name: str) -> None:
    path = tmp_path / "dispatch-1-1.log"
    DispatchLogSegment(path, 1, DispatchConfig(), f"c{module}\n{name}\n(tR.".encode()).close()
    done = replayed(path)
    assert done.exit_code != 0
    assert "is no part of a dispatcher's state" in " ".join((done.stdout + done.stderr).split())


def test_outputs_of_actions_are_not_logged(tmp_path: Path) -> None:
    path = tmp_path / "dispatch-1-1.log"
    segment = DispatchLogSegment(path, 1, DispatchConfig(), b"")
    result = AttemptResult("ok", passed=True, output=b'{"stdout": "a secret of the tenant"}', usage={"cpu_s": 2.0})
    segment.write([HandledCall(1.0, (AttemptsEnded((Ended("a", "n", 1, 0, result),)),), [])])
    segment.close()
    assert b"secret" not in path.read_bytes()
    (call,) = DispatchLogReader(path).calls()
    (ended,) = call.given
    assert isinstance(ended, AttemptsEnded)
    assert ended.ends[0].result == AttemptResult("ok", passed=True, usage={"cpu_s": 2.0})
