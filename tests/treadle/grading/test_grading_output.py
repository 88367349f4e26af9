from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from treadle.grading.format import GradingLine
from treadle.grading.output import OutputFile

LINES = [GradingLine(id="a"), GradingLine(id="b", meta={"mine": 1})]


def test_every_line_is_written_in_place_of_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("an earlier run, with many more lines than this one\n" * 100)
    with OutputFile(path) as out:
        assert path.read_text().startswith("an earlier run")
        out.write(LINES, [])
    assert [json.loads(row)["id"] for row in path.read_text().splitlines()] == ["a", "b"]


def test_a_run_that_wrote_nothing_leaves_no_file_and_changes_none(tmp_path: Path) -> None:
    fresh, earlier = tmp_path / "fresh", tmp_path / "earlier"
    earlier.write_text("an earlier run")
    for path in (fresh, earlier):
        with pytest.raises(KeyError), OutputFile(path):
            raise KeyError
    assert [each.name for each in tmp_path.iterdir()] == ["earlier"]
    assert earlier.read_text() == "an earlier run"


def test_opening_fails_if_the_path_cannot_be_written(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "out", tmp_path / ("x" * 300)):
        with pytest.raises(OSError, match="\\[Errno"):
            OutputFile(path)
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_too() -> None:
    read, write = os.pipe()
    with OutputFile(Path(f"/dev/fd/{write}")) as out:
        out.write(LINES, [])
    os.close(write)
    with os.fdopen(read) as reader:
        assert len(reader.readlines()) == 2


def test_a_full_disk_is_an_error() -> None:
    with OutputFile(Path("/dev/full")) as out, pytest.raises(OSError, match="No space left"):
        out.write(LINES, [])
