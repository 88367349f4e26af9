"""Trace files of trajectories, and recorded agents: accepted files, and refusals by line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from shared.policy.model.elasticity import Elasticity
from treadle.lab.replay.tangram.recorded import Recording
from treadle.lab.replay.tangram.trace import Trajectory, TrajectoryStep
from treadle.lab.traces.rewards import TraceError
from treadle.lab.traces.tangram import read_trajectories
from treadle.lab.traces.tangram_recorded import COMMANDS, EXECUTIONS, SESSIONS, read_recordings

REWARD: dict[str, object] = {
    "think_s": 2, "kind": "reward", "work_s": 60.0, "units": [1, 8], "elasticity": {"model": "amdahl", "serial": 0.1},
}  # fmt: skip


def line(name: object, *steps: object, **fields: object) -> dict[str, object]:
    return {"trajectory": name, "group": "g", "steps": list(steps), **fields}


def written(path: Path, *lines: object) -> Path:
    text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_trace_is_read_as_it_is_written(tmp_path: Path, name: str) -> None:
    tool = {"kind": "tool", "work_s": 0.5}
    path = written(tmp_path / name, line("a", tool, REWARD), "", line(2, {**REWARD, "profile_s": 50}, group=7))
    elasticity = Elasticity("amdahl", serial=0.1)
    assert read_trajectories(path) == (
        Trajectory(
            "a", "g", (TrajectoryStep(0.0, "tool", 0.5), TrajectoryStep(2.0, "reward", 60.0, 1, 8, elasticity, 60.0))
        ),
        Trajectory("2", "7", (TrajectoryStep(2.0, "reward", 60.0, 1, 8, elasticity, 50.0),)),
    )


def test_elasticity_is_written_as_in_the_api(tmp_path: Path) -> None:
    steps = [{**REWARD, "elasticity": found} for found in ({"4": 0.9, "8": 0.7}, {"model": "power", "exponent": 0.8})]
    (trajectory,) = read_trajectories(written(tmp_path / "t.jsonl", line("a", *steps)))
    assert [step.elasticity for step in trajectory.steps] == [
        Elasticity("table", ((4, 0.9), (8, 0.7))),
        Elasticity("power", exponent=0.8),
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "is no JSON object"),
        (line("", REWARD), "give trajectory as a text"),
        (line("a", REWARD), "is on line 1 already"),
        (line("b"), "at least one"),
        (line("b", {"kind": "", "work_s": 1}), "kind of step 1"),
        (line("b", REWARD, {"kind": "tool"}), "work_s of step 2 is None"),
        (line("b", {**REWARD, "think_s": -1}), "think_s of step 1 is -1"),
        (line("b", {**REWARD, "work_s": True}), "work_s of step 1 is True"),
        (line("b", {**REWARD, "units": [4, 2]}), r"units of step 1 are \[4, 2\]"),
        (line("b", {**REWARD, "units": 3}), "units of step 1 are 3"),
        (line("b", {"kind": "tool", "work_s": 1, "units": [1, 2]}), "add an elasticity"),
        (line("b", {**REWARD, "elasticity": {"model": "linear"}}), "step 1: elasticity"),
        (line("b", {**REWARD, "elasticity": 0.5}), "elasticity of step 1 is 0.5"),
        (line("b", {**REWARD, "cores": 2}), "step 1 has cores"),
        ('{"trajectory": "b", "steps": [{"kind": "tool", "work_s": NaN}]}', "work_s of step 1 is nan"),
    ],
)
def test_an_invalid_line_is_refused_by_its_number(tmp_path: Path, wrong: object, message: str) -> None:
    path = written(tmp_path / "t.jsonl", line("a", REWARD), wrong)
    with pytest.raises(TraceError, match=f"t.jsonl:2: .*{message}"):
        read_trajectories(path)


def test_a_file_without_trajectories_or_cut_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no trajectories"):
        read_trajectories(written(tmp_path / "empty.jsonl", "", ""))
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(json.dumps(line("a", REWARD)).encode())[:-9])
    with pytest.raises(TraceError, match="no whole gzip file"):
        read_trajectories(cut)


# ---- recorded agents ---------------------------------------------------------------------------------------------


def turn(api_s: float | None, waited_s: float, *types: str) -> dict[str, object]:
    return {"type": "n", "api_time": api_s, "think_time": waited_s, "input_types": list(types)}


def recorded(folder: Path) -> Path:
    asked = [turn(4.0, 0.0, "text"), *(turn(6.0, wait_s, "tool_result") for wait_s in (1, 2, 3, 4, 500))]
    asked[2]["api_time"] = None
    written(folder / SESSIONS, {"requests": [*asked, {"type": "subagent"}, turn(9.0, 7.0, "text")]})
    steps = [{"gap_s": 4.0}, {"gap_s": 8.0}, {"t": 12.0}]
    written(folder / COMMANDS, {"session": "s", "steps": steps})
    written(folder / EXECUTIONS, {"trajectory": "t", "steps": [{"execution_time_s": 0.25}]})
    return folder


def test_recordings_are_completed_by_their_own_fields(tmp_path: Path) -> None:
    commands, session, executions = read_recordings(recorded(tmp_path))
    assert commands == Recording("mini-swe-agent", ((3.0, 1.0), (6.0, 2.0)))
    # An unknown generation is the median one; a person's message ends it; a wait is a minute at most.
    assert session == Recording("sessions", ((4.0, 1.0), (6.0, 2.0), (6.0, 3.0), (6.0, 4.0), (6.0, 60.0)))
    assert executions == Recording("swe-agent", ((6.0, 0.25),))


def test_a_recording_that_is_not_as_described_is_refused_by_its_line(tmp_path: Path) -> None:
    written(recorded(tmp_path) / EXECUTIONS, {"steps": [{"execution_time_s": 1}]}, {"steps": [{}]})
    with pytest.raises(TraceError, match=r"swe_agent_steps.jsonl.gz:2: is not as its README describes"):
        read_recordings(tmp_path)
