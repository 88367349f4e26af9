"""``treadle replay planner``: decisions made again from a stimulus log."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from shared.policy.model.quotas import Level, QuotaLimits, Rate
from shared.policy.scaling.config import PlannerConfig
from shared.policy.scaling.planner import Planner
from shared.policy.scaling.quota_supply import ObservedQuota
from shared.policy.scaling.stimuli import (
    BatchAdded,
    BatchRemoved,
    Command,
    FirstRequestArrived,
    NodesChanged,
    PublishTarget,
    QuotasObserved,
    Stimulus,
    TimerFired,
)
from shared.policy.scaling.workload import BatchRecord, OpenedBatch, PastBatch, Stage
from shared.store import stimulus_log as planning
from shared.store.stimulus_log import LogError, StimulusLog, read_log
from treadle.cli.main import app

POOL = "cores@default"
NOW = 1_763_700_000.0
FIRST = OpenedBatch("b1", "ada", "code", 4, (Stage("run", 1.0, 10.0, POOL),), 2.0, 64.0, NOW)
PAST = PastBatch(replace(FIRST, first_arrival_at=NOW + 1), BatchRecord((0.0,) * 4, ((4.0,) * 4,)))
STORY: tuple[tuple[float, Stimulus], ...] = (
    (0.0, NodesChanged({POOL: 8}, {})),
    (1.0, BatchAdded(FIRST, ())),
    (2.0, FirstRequestArrived("b1", NOW + 2)),
    (8.0, BatchRemoved("b1", (PAST,))),
    (20.0, BatchAdded(replace(FIRST, batch="b2", opened_at=NOW + 20), (PAST,))),
    (21.0, FirstRequestArrived("b2", NOW + 21)),
    (32.0, TimerFired()),
)
DECISIONS = 6
"""One each at the arrival of nodes, the opening and the end of the first batch; T and the target at the opening of
the second; T again at the review, because its requests are late."""


JUDGING = replace(FIRST, stages=(replace(FIRST.stages[0], quotas={"search": 1.0}),))
LIMITS = QuotaLimits((4.0,), (Rate(1.0, 2.0),))
QUOTAS: tuple[tuple[float, Stimulus], ...] = (
    (0.0, NodesChanged({POOL: 8}, {})),
    (1.0, QuotasObserved({"search": ObservedQuota(LIMITS, (Level(0.5, NOW),)), "gone": None})),
    (1.0, BatchAdded(JUDGING, (PAST,))),
)


def written(
    path: Path, *, seed: int = 0, tampered: int | None = None, story: tuple[tuple[float, Stimulus], ...] = STORY
) -> Path:
    """The stimulus log of a story; the decision `tampered` asks for one more unit."""
    planner = Planner(PlannerConfig(stabilization_s=0.0), seed=seed)
    log = StimulusLog(path, planner, most_bytes=1 << 20)
    for number, (after, stimulus) in enumerate(story):
        commands: list[Command] = planner.handle(NOW + after, stimulus)
        if number == tampered:
            commands = [
                replace(one, units=one.units + 1) if isinstance(one, PublishTarget) else one for one in commands
            ]
        log.write(NOW + after, stimulus, commands)
    log.close()
    return path


def replayed(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["replay", "planner", *map(str, arguments)])


def test_a_log_made_again_is_identical(tmp_path: Path) -> None:
    done = replayed(written(tmp_path / "a.log"))
    assert done.exit_code == 0, done.stderr
    assert f"{len(STORY)} stimuli, {DECISIONS} decisions: all the same" in done.stdout
    assert "no-history: no history of task code yet" in done.stdout
    assert "0 → 4" in done.stdout
    assert "T of batch b2" in done.stdout


def test_quotas_are_in_the_log(tmp_path: Path) -> None:
    path = written(tmp_path / "a.log", story=QUOTAS)
    assert [entry.stimulus for entry in read_log(path)[1]] == [stimulus for _, stimulus in QUOTAS]
    done = replayed(path)
    assert done.exit_code == 0, done.stderr
    assert "3 stimuli, 2 decisions: all the same" in done.stdout
    *_, (_, target) = list(read_log(path)[1])[-1].commands
    assert target["reason"]["summary"].endswith("; the quota 'search' (1 in 2 s) limits stage run")


def test_json_is_one_object(tmp_path: Path) -> None:
    done = replayed(written(tmp_path / "a.log"), "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == {"stimuli": len(STORY), "decisions": DECISIONS, "same": True, "differences": []}


def test_an_answer_that_is_another_now_is_shown_beside_the_old_one(tmp_path: Path) -> None:
    path = written(tmp_path / "a.log", tampered=1)
    done = replayed(path)
    assert done.exit_code == 1
    assert "1 stimulus is different now" in done.stdout
    assert "0 → 5" in done.stdout
    assert "0 → 4" in done.stdout
    assert "BatchAdded b1" in done.stdout
    (different,) = json.loads(replayed(path, "--json").stdout)["differences"]
    assert (different["stimulus"], different["description"]) == (2, "BatchAdded b1")
    assert different["then"][0][1]["units"] == 5
    assert different["again"][0][1]["units"] == 4


def test_a_long_log_is_printed_by_its_end_unless_all_is_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path / "a.log")
    short, whole = replayed(path, "--last", "2"), replayed(path, "--all")
    assert "The last 2 of" in short.stdout
    assert "no-history" not in short.stdout
    assert "no-history" in whole.stdout
    assert "decisions: all the same" in replayed(path, "--last", "0").stdout


def test_a_log_that_was_cut_off_ends_at_its_whole_entries(tmp_path: Path) -> None:
    path = written(tmp_path / "a.log")
    path.write_bytes(path.read_bytes()[:-3])
    done = replayed(path, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["stimuli"] == len(STORY) - 1


def test_of_a_folder_the_newest_log_is_taken(tmp_path: Path) -> None:
    written(tmp_path / "planner-999.log", tampered=1)
    written(tmp_path / "planner-1000.log")
    assert replayed(tmp_path).exit_code == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no stimulus log"),
        (b"%PDF-1.7 and so on", "is no stimulus log"),
        (b"\x01\0\0\0\xc0", "of this version"),
        (struct.pack("<I", 5001) + b"\x91" * 5000 + b"\xc0", "of this version"),
    ],
)
def test_a_file_that_is_no_log_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.log").write_bytes(content)
    refused(replayed(tmp_path / "a.log"), message)


def test_a_stimulus_of_another_version_is_refused_in_one_line(tmp_path: Path) -> None:
    path = written(tmp_path / "a.log")
    path.write_bytes(path.read_bytes().replace(b"FirstRequestArrived", b"FinalRequestArrived"))
    refused(replayed(path), "this version of Treadle does not know")


def test_an_empty_folder_is_refused_with_how_to_get_a_log(tmp_path: Path) -> None:
    refused(replayed(tmp_path), "SCALING_PLANNER_STIMULUS_LOGS")


def test_a_file_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    refused(replayed(tmp_path / "none"), "name a stimulus log")


def test_help_teaches_what_a_stimulus_log_is() -> None:
    message = CliRunner().invoke(app, ["replay", "planner", "--help"]).stdout
    assert "SCALING_PLANNER_STIMULUS_LOGS" in message
    assert "seed" in message


def refused(done: Result, message: str) -> None:
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_log_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "planner-1.log"
    monkeypatch.setattr(planning, "VERSION", planning.VERSION + 1)
    StimulusLog(path, Planner(), most_bytes=10_000).close()
    monkeypatch.undo()
    with pytest.raises(LogError, match="of version 6; this Treadle reads version 5"):
        read_log(path)


def test_a_log_with_another_header_is_refused_by_its_version(tmp_path: Path) -> None:
    """Version 2 has `ways` instead of `config`."""
    header = msgspec.msgpack.encode({"version": 2, "ways": {}, "floors": {}, "ceilings": {}, "seed": 0})
    path = tmp_path / "planner-1.log"
    path.write_bytes(struct.pack("<I", len(header)) + header)
    refused(replayed(path), "is a stimulus log of version 2; this Treadle reads version 5")
