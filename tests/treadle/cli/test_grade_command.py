"""``treadle grade`` without a stack: exit statuses and messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp.test_utils import unused_port
from typer.testing import CliRunner, Result

from treadle.cli.main import app

LINE = '{"id": "a", "params": {}}\n'


def grade(folder: Path, *arguments: str) -> Result:
    file = folder / "lines.jsonl"
    file.write_text(LINE)
    return CliRunner().invoke(app, ["grade", str(file), "--kind", "noop", *arguments])


@pytest.mark.parametrize("url", ["mesh:8700", "http://", "http://mesh:99999"])
def test_an_address_that_is_none_is_a_wrong_option(tmp_path: Path, url: str) -> None:
    done = grade(tmp_path, "--url", url)
    assert done.exit_code == 2
    assert f"treadle grade: {url!r} is no address: write it as http://127.0.0.1:8700" in done.stderr


def test_a_proxy_that_does_not_answer_is_an_error_at_once(tmp_path: Path) -> None:
    done = grade(tmp_path, "--url", f"http://127.0.0.1:{unused_port()}")
    assert done.exit_code == 3
    assert "no stack answers at http://127.0.0.1" in done.stderr


def test_no_stack_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TREADLE_URL", raising=False)
    done = grade(tmp_path, "--home", str(tmp_path))
    assert done.exit_code == 3
    assert "no stack is up: start one with treadle up --detach" in done.stderr


def test_the_file_is_not_overwritten_by_the_answers(tmp_path: Path) -> None:
    done = grade(tmp_path, "--out", str(tmp_path / "lines.jsonl"))
    assert done.exit_code == 2
    assert "is the file to grade" in done.stderr
    assert (tmp_path / "lines.jsonl").read_text() == LINE
