"""``treadle grade`` and ``treadle demo`` on a real stack."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from treadle.testing.servers import clean_environment, temporary_home
from treadle.testing.stack import RunningStack, running_stack

TREADLE = str(Path(sys.executable).with_name("treadle"))
PASSES, FAILS, RAISES, ENDLESS = "def f(): return 1", "def f(): return 2", "def f(): return g()", "while True: pass"
DATA = Path(os.environ.get("TREADLE_DATA", "../shared/data"))


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with temporary_home() as root, running_stack(root) as running:
        yield running


def treadle(stack: RunningStack | None, *arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    home = {"TREADLE_HOME": str(stack.home.root)} if stack else {}
    settings = {**clean_environment(), **home, **environ}
    command = [TREADLE, *map(str, arguments)]
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=200, check=False)


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def program(id_: str, code: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "params": {"code": code, "tests": "assert f() == 1", "timeout_s": 1}, **more}


PROGRAMS = [
    program("right", PASSES, group="one", expect="passed"),
    program("wrong", FAILS, group="one", expect="failed"),
    program("broken", RAISES, group="two", expect="error"),
    program("stuck", ENDLESS, group="two", expect="timeout"),
]


def test_a_file_is_graded_and_reported(stack: RunningStack, tmp_path: Path) -> None:
    file, out = write(tmp_path / "step 7.jsonl", *PROGRAMS), tmp_path / "out.jsonl"
    done = treadle(stack, "grade", file, "--kind", "code.asserts", "--json", "--out", out)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["task"] == "step-7"
    counts = {"passed": 1, "failed": 1, "error": 1, "timeout": 1, "scored": 0, "masked": 0}
    assert report["rewards"]["verdicts"] == counts
    assert [(group["group"], group["mean"]) for group in report["rewards"]["groups"]] == [("one", 0.5), ("two", 0.0)]
    assert report["agreement"]["agreed"] == report["agreement"]["compared"] == 4
    (pool,) = report["pools"]
    assert pool["pool"] == "cores@default"
    assert 1 < pool["used_unit_s"] <= pool["dedicated_unit_s"]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["id"], row["verdict"]) for row in rows] == [
        ("right", "passed"),
        ("wrong", "failed"),
        ("broken", "error"),
        ("stuck", "timeout"),
    ]
    assert rows[2]["answer"]["output"]["exception"] == "NameError"


def test_people_get_tables_and_disagreements_an_exit_status(stack: RunningStack, tmp_path: Path) -> None:
    header = {"treadle": 1, "task": "people", "workflow": {"stages": [{"name": "run", "kind": "code.asserts"}]}}
    file = write(tmp_path / "a.jsonl", header, program("a", PASSES, meta={"was": False}), program("b", PASSES))
    done = treadle(stack, "grade", file, "--expect", "meta.was")
    assert done.returncode == 1, done.stderr
    for part in (
        "2 requests: 2 passed",
        "queueing",
        "overhead",
        "ZQ-Dedicated",
        "Extra delay d",
        "0 of 1 recorded verdict confirmed",
    ):
        assert part in done.stdout
    again = treadle(stack, "grade", file, "--task", "people")
    assert again.returncode == 0, again.stderr


def test_a_bad_file_submits_nothing_without_skip_bad(stack: RunningStack, tmp_path: Path) -> None:
    file = write(tmp_path / "bad.jsonl", program("a", PASSES), {"id": "b", "params": {"tests": ""}})
    done = treadle(stack, "grade", file, "--kind", "code.asserts", "--task", "never")
    assert done.returncode == 2
    assert "line 2, field params.code: missing; add it" in done.stderr
    assert "--skip-bad" in done.stderr
    unknown = treadle(stack, "grade", write(tmp_path / "good.jsonl", program("a", PASSES)), "--task", "never")
    assert unknown.returncode == 2
    assert "no task 'never'" in unknown.stderr
    skipped = treadle(stack, "grade", file, "--kind", "code.asserts", "--skip-bad", "--json")
    assert skipped.returncode == 0, skipped.stderr
    assert json.loads(skipped.stdout)["rewards"]["requests"] == 1


def test_an_out_that_cannot_be_written_is_an_error_before_submission(stack: RunningStack, tmp_path: Path) -> None:
    file = write(tmp_path / "out-first.jsonl", program("a", PASSES))
    for out in (tmp_path / "nowhere" / "out.jsonl", tmp_path, file):
        done = treadle(stack, "grade", file, "--kind", "code.asserts", "--out", out)
        assert (done.returncode, done.stdout) == (2, "")
        assert "--out" in done.stderr
        assert "nothing was submitted" in done.stderr
        assert "Traceback" not in done.stderr
    with urllib.request.urlopen(f"{stack.urls['proxy']}/v1/batches", timeout=10) as reply:
        assert "out-first" not in {batch["task"] for batch in json.load(reply)["batches"]}


def test_the_report_is_printed_even_where_the_answers_cannot_be_written(stack: RunningStack, tmp_path: Path) -> None:
    file = write(tmp_path / "full.jsonl", program("a", PASSES))
    options = ("grade", file, "--kind", "code.asserts", "--json", "--key", "full")
    done = treadle(stack, *options, "--out", "/dev/full")
    assert done.returncode == 5
    assert json.loads(done.stdout)["rewards"]["verdicts"]["passed"] == 1
    assert "No space left on device" in done.stderr
    assert "--key full" in done.stderr
    assert "Traceback" not in done.stderr
    again = treadle(stack, *options, "--out", tmp_path / "out.jsonl")
    assert again.returncode == 0, again.stderr
    assert json.loads((tmp_path / "out.jsonl").read_text())["verdict"] == "passed"


def test_a_refused_line_is_reported_with_its_reason_and_is_no_failure(stack: RunningStack, tmp_path: Path) -> None:
    row = {"id": "a", "params": {"code": "", "language": "cobol", "tests": [{"stdout": ""}]}}
    file = write(tmp_path / "cobol.jsonl", row)
    done = treadle(stack, "grade", file, "--kind", "code.stdio")
    assert done.returncode == 4
    informative = " ".join(done.stdout.split())
    assert "1 request: 1 masked" in informative
    assert "No verdict 1 request to leave out" in informative
    assert "1 refused: This node has no toolchain for 'cobol'" in informative
    assert "failure of the mesh" not in informative
    found = json.loads(treadle(stack, "grade", file, "--kind", "code.stdio", "--json").stdout)["without_verdict"]
    assert [(each["ended"], each["requests"]) for each in found] == [("refused", 1)]


def test_skip_bad_leaves_out_a_line_nested_too_deep(stack: RunningStack, tmp_path: Path) -> None:
    file = write(tmp_path / "deep.jsonl", program("a", PASSES))
    file.write_text('{"id": "deep", "meta": {"x": ' + "[" * 2000 + "]" * 2000 + "}}\n" + file.read_text())
    options = ("grade", file, "--kind", "code.asserts", "--json")
    done = treadle(stack, *options)
    assert done.returncode == 2
    assert "line 1, the whole line: nested more than" in done.stderr
    skipped = treadle(stack, *options, "--skip-bad")
    assert skipped.returncode == 0, skipped.stderr
    assert json.loads(skipped.stdout)["rewards"]["requests"] == 1


def test_the_same_key_takes_up_what_was_there(stack: RunningStack, tmp_path: Path) -> None:
    file = write(tmp_path / "keyed.jsonl", *PROGRAMS)
    options = ("grade", file, "--kind", "code.asserts", "--json", "--key", "step-1", "--batch-size", "3")
    first, second = treadle(stack, *options), treadle(stack, *options)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    batches = [[batch["id"] for batch in json.loads(done.stdout)["batches"]] for done in (first, second)]
    assert batches[0] == batches[1]
    assert len(set(batches[0])) == 2
    assert json.loads(first.stdout)["acts"] == json.loads(second.stdout)["acts"]


def test_a_killed_proxy_loses_and_repeats_no_answer(stack: RunningStack, tmp_path: Path) -> None:
    header = {"treadle": 1, "task": "broken", "workflow": {"stages": [{"name": "wait", "kind": "sleep"}]}}
    count = 60
    rows = [{"id": str(place), "params": {"seconds": place / 15}} for place in range(count)]
    out = tmp_path / "out.jsonl"
    command = [TREADLE, "grade", str(write(tmp_path / "a.jsonl", header, *rows)), "--json", "--out", str(out)]
    environ = {**clean_environment(), "TREADLE_HOME": str(stack.home.root)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as grading:
        await_answers(stack.urls["proxy"], "broken", 5)
        stack.await_healthy("proxy", other_than=stack.kill("proxy"))
        printed, errors = grading.communicate(timeout=120)
    assert grading.returncode == 0, errors
    report = json.loads(printed)
    assert (report["rewards"]["requests"], report["unanswered"], report["repeated"]) == (count, 0, 0)
    assert report["rewards"]["verdicts"]["masked"] == 0
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == [row["id"] for row in rows]


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_cancels_what_is_left(stack: RunningStack, tmp_path: Path) -> None:
    header = {"treadle": 1, "task": "stopped", "workflow": {"stages": [{"name": "wait", "kind": "sleep"}]}}
    rows = [{"id": str(place), "params": {"seconds": 0.01 if place < 3 else 600}} for place in range(6)]
    command = [TREADLE, "grade", str(write(tmp_path / "a.jsonl", header, *rows))]
    environ = {**clean_environment(), "TREADLE_HOME": str(stack.home.root)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as grading:
        batch = await_answers(stack.urls["proxy"], "stopped", 3)
        grading.send_signal(signal.SIGINT)
        _, errors = grading.communicate(timeout=30)
    assert grading.returncode == 130
    assert "the batch was cancelled" in errors
    with urllib.request.urlopen(f"{stack.urls['proxy']}/v1/batches/{batch}/results?follow=true", timeout=30) as reply:
        ended = [json.loads(line)["ended"] for line in reply]
    assert sorted(ended) == ["cancelled"] * 3 + ["ok"] * 3


def await_answers(url: str, task: str, fewest: int) -> str:
    """The batch of the task, when so many of its requests have been answered and more are to come."""
    deadline = time.monotonic() + 60
    while True:
        with urllib.request.urlopen(f"{url}/v1/batches", timeout=10) as reply:
            batches = json.load(reply)["batches"]
        mine = next((batch for batch in batches if batch["task"] == task), None)
        if mine is not None and mine["answered"] >= fewest:
            assert mine["answered"] < mine["size"]
            return str(mine["id"])
        assert time.monotonic() < deadline, batches
        time.sleep(0.02)


def test_without_a_stack_the_command_that_helps_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", *PROGRAMS)
    for environ in ({"TREADLE_HOME": str(tmp_path / "nowhere")}, {"TREADLE_URL": "http://127.0.0.1:1"}):
        done = treadle(None, "grade", file, "--kind", "code.asserts", **environ)
        assert done.returncode == 3
        assert "treadle up" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_demo_brings_its_own_stack_and_leaves_it_for_the_next(stack_home: Path, tmp_path: Path) -> None:
    environ = {"TREADLE_HOME": str(stack_home), "PROXY_PORT": "0", "TREADLE_DATA": str(tmp_path)}
    try:
        first = treadle(None, "demo", "--quick", "--group-size", "3", **environ)
        assert first.returncode == 0, first.stdout + first.stderr
        for part in ("starting one", "12 of 12 reference solutions pass", "set TREADLE_DATA", "treadle down"):
            assert part in " ".join(first.stdout.split())
        second = treadle(None, "demo", "--quick", "--group-size", "2", "--json", **environ)
        assert "starting one" not in second.stderr
        found = json.loads(second.stdout)
        assert found["mutants"]["references_passed"] == found["mutants"]["problems"] == 12
        assert found["mutants"]["report"]["rewards"]["requests"] == 24
        assert found["generations"] is None
    finally:
        down = treadle(None, "down", **environ)
    assert down.returncode == 0


@pytest.mark.data
def test_recorded_generations_get_their_recorded_verdicts(stack: RunningStack) -> None:
    if not (DATA / "code").is_dir():
        pytest.skip(f"no recorded generations in {DATA.absolute()}: set TREADLE_DATA")
    options = ("demo", "--quick", "--group-size", "1", "--generations", "40", "--json")
    done = treadle(stack, *options, TREADLE_DATA=str(DATA.absolute()))
    assert done.returncode == 0, done.stderr
    agreement = json.loads(done.stdout)["generations"]["agreement"]
    assert agreement["agreed"] == agreement["compared"] == 40
