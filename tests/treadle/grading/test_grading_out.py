from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from treadle.grading.format import Line
from treadle.grading.out import OutFile

LINES = [Line(id="a"), Line(id="b", meta={"mine": 1})]


def test_every_line_is_written_in_place_of_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("an earlier run, with many more lines than this one\n" * 100)
    with OutFile(path) as out:
        assert path.read_text().startswith("an earlier run")
        out.write(LINES, [])
    assert [json.loads(row)["id"] for row in path.read_text().splitlines()] == ["a", "b"]


def test_a_run_that_wrote_nothing_leaves_no_file_and_changes_none(tmp_path: Path) -> None:
    fresh, earlier = tmp_path / "fresh", tmp_path / "earlier"
    earlier.write_text("an earlier run")
    for path in (fresh, earlier):
        with pytest.raises(KeyError), OutFile(path):
            raise KeyError
    assert [each.name for each in tmp_path.iterdir()] == ["earlier"]
    assert earlier.read_text() == "an earlier run"


def test_where_nothing_can_be_written_opening_says_so(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "out", tmp_path / ("x" * 300)):
        with pytest.raises(OSError, match="\\[Errno"):
            OutFile(path)
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_too() -> None:
    read, write = os.pipe()
    with OutFile(Path(f"/dev/fd/{write}")) as out:
        out.write(LINES, [])
    os.close(write)
    with os.fdopen(read) as reader:
        assert len(reader.readlines()) == 2


def test_a_full_disk_is_an_error_and_not_a_silence() -> None:
    with OutFile(Path("/dev/full")) as out, pytest.raises(OSError, match="No space left"):
        out.write(LINES, [])
