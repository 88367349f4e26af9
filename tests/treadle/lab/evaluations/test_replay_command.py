"""``treadle replay distrs`` as a person types it, over small workloads, and over traces of one's own."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner, Result

from treadle.cli.main import app
from treadle.lab.evaluations.distrs.jobs import POLICIES
from treadle.lab.replay.distrs.ablations import ABLATIONS
from treadle.lab.replay.distrs.generate import generate
from treadle.lab.traces.rewards import write_trace
from treadle.testing.servers import clean_environment

SMALL = ("--iterations", "3", "--batch-size", "24", "--tasks", "2")
HEADER: dict[str, object] = {
    "stages": [
        {"name": "fetch", "worker_cost": 1, "timeout_s": 5},
        {"name": "compile", "worker_cost": 4, "timeout_s": 30, "cold_start_s": 2},
        {"name": "run", "worker_cost": 40, "timeout_s": 20},
    ],
    "max_extra_delay_s": 2,
    "batch_gap_s": 10,
}


def replayed(*arguments: str, processes: int = 1) -> Result:
    quick: tuple[str, ...] = ("--processes", str(processes), "--search-up-to", "1000")
    quick += tuple(
        f"--{name}={count}" for name, count in (("draws", 1), ("workloads", 0)) if f"--{name}" not in arguments
    )
    return CliRunner().invoke(app, ["replay", "distrs", *arguments, *quick])


def document(*arguments: str, processes: int = 1) -> dict[str, Any]:
    done = replayed("--json", *arguments, processes=processes)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def settled(found: dict[str, Any]) -> dict[str, Any]:
    """The document without values measured by the clock."""
    kept = {name: value for name, value in found.items() if name not in ("search_ms", "figures")}
    return {**kept, "figures": [one for one in found.get("figures", ()) if not one["figure"].startswith("15")]}


def requests(stages: int, *, starts_s: Iterable[float] | None = None) -> list[dict[str, object]]:
    """Two tasks of three batches of four requests, that end at different stages."""
    starts = list(starts_s or ())
    return [
        {
            "task": task,
            "batch": batch,
            "index": index,
            "arrival_s": 3.0 + 2.0 * index,
            "stages": [1.0 + index] * min(stages, 1 + (index + batch) % 3),
            **({"batch_start_s": starts[batch]} if starts else {}),
        }
        for task in ("a", "b")
        for batch in range(3)
        for index in range(4)
    ]


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def png_size(path: Path) -> tuple[int, int]:
    start = path.read_bytes()[:24]
    assert start[:8] == b"\x89PNG\r\n\x1a\n"
    wide, high = struct.unpack(">II", start[16:24])
    return wide, high


def test_tables_are_on_standard_output_and_progress_is_not() -> None:
    done = replayed(*SMALL)
    assert done.exit_code == 0, done.stderr
    for output in (
        "DistRS §6, reproduced",
        "3.79",
        "1.98",
        "3.49",
        "2.16",
        "0.62",
        "0.85",
        "14.3",
        "2.1",
        "1.5",
        "very",
    ):
        assert output in done.stdout
    assert "All policies" in done.stdout
    assert all(policy in done.stdout for policy in POLICIES)
    assert all(variant in done.stdout for _, variant in ABLATIONS)
    assert "replaying" in done.stderr
    assert "replaying" not in done.stdout


def test_json_is_one_object_of_the_published_shape() -> None:
    found = document(*SMALL)
    for policies in (found["policies"], found["disaggregated"]["policies"]):
        assert list(policies) == list(POLICIES)
        for policy in policies.values():
            assert policy.keys() == {"worker_seconds", "extra_delay_s", "normalised"}
            assert policy["worker_seconds"].keys() == policy["normalised"].keys() == {"compile", "run"}
            assert policy["extra_delay_s"].keys() == {"mean", "p50", "p99", "max"}
    assert found["search_ms"].keys() == {"1000"}
    assert all(one.keys() == {"figure", "unit", "paper", "reproduced", "draws"} for one in found["figures"])
    assert [(one["condition"], one["variant"]) for one in found["ablations"]] == list(ABLATIONS)
    assert len(found["order"]["workers"]) == len(found["order"]["ebf_s"]) == len(found["order"]["fcfs_s"]) > 1


def test_a_spread_is_of_every_draw_and_of_the_figures_that_rest_on_one() -> None:
    found = document(*SMALL, "--draws", "2")
    (other,) = found["draws"].values()
    assert list(found["draws"]) == ["2"]
    alone = document(*SMALL, "--seed", "2")
    assert other["colocated"] == alone["policies"], "each draw is the evaluation with that seed"
    for one, second in zip(found["figures"], alone["figures"], strict=True):
        if not one["figure"].startswith("15") and one["reproduced"] is not None and second["reproduced"] is not None:
            assert one["draws"] == [one["reproduced"], second["reproduced"]]
    output = replayed(*SMALL, "--draws", "2").stdout
    assert "2 draws: mean" in output
    assert "All policies over 2 draws" in output


def test_ours_is_compared_with_the_papers_on_each_workload_of_many_shapes() -> None:
    found = document(*SMALL, "--workloads", "1")
    (one,) = found["workloads"]
    assert one["workload"] == 1
    assert (one["tasks"], one["stages"], one["max_extra_delay_s"]) == (4, 3, 3.0)
    worse = {
        "later in the mean": one["treadle"]["mean_s"] > one["distrs"]["mean_s"],
        "later at worst": one["treadle"]["worst_s"] > one["distrs"]["worst_s"],
        "dearer": one["treadle"]["cost"] > one["distrs"]["cost"],
    }
    assert one["worse"] == [name for name, so in worse.items() if so]
    assert "Ours and DistRS on workloads of many shapes" in replayed(*SMALL, "--workloads", "1").stdout


def test_figures_match_the_policies() -> None:
    found = document(*SMALL)
    figures = {one["figure"]: one["reproduced"] for one in found["figures"]}
    held = {policy: found["policies"][policy]["worker_seconds"] for policy in POLICIES}
    for name, stage in (("GPU", "run"), ("CPU", "compile")):
        ratio = held["zq-dedicated"][stage] / held["distrs"][stage]
        assert figures[f"10: {name} time, ZQ-Dedicated / DistRS, colocated"] == pytest.approx(ratio)
    assert (
        figures["11: mean extra delay, DistRS, disaggregated"]
        == found["disaggregated"]["policies"]["distrs"]["extra_delay_s"]["mean"]
    )


def test_a_seed_gives_the_same_figures_on_any_number_of_processes_and_another_gives_others() -> None:
    once, again = document(*SMALL), document(*SMALL, processes=2)
    assert settled(once) == settled(again)
    assert settled(document(*SMALL, "--seed", "2")) != settled(once)


def test_the_extra_delay_asked_for_is_planned_with() -> None:
    patient, strict = (document(*SMALL, "--max-extra-delay", delay)["policies"] for delay in ("200", "0"))
    assert patient["distrs"]["worker_seconds"]["compile"] < strict["distrs"]["worker_seconds"]["compile"]


@pytest.mark.parametrize("starts_s", [None, (0.0, 12.0, 20.0)])
def test_a_trace_of_ones_own_has_any_stages_and_tasks_in_closed_and_in_open_loop(
    tmp_path: Path, starts_s: tuple[float, ...] | None
) -> None:
    found = document("--trace", str(written(tmp_path / "t.jsonl", HEADER, *requests(3, starts_s=starts_s))))
    assert found.keys() == {"policies", "search_ms"}
    assert list(found["policies"]) == list(POLICIES)
    for policy in found["policies"].values():
        assert list(policy["worker_seconds"]) == ["fetch", "compile", "run"]
        assert all(ratio >= 1 - 1e-9 for ratio in policy["normalised"].values())


def test_a_stage_without_requests_has_no_ratio(tmp_path: Path) -> None:
    lines = [{**line, "stages": [1.0]} for line in requests(1)]
    path = written(tmp_path / "t.jsonl", HEADER, *lines)
    for policy in document("--trace", str(path))["policies"].values():
        assert policy["normalised"]["run"] is None
    assert "–" in replayed("--trace", str(path)).stdout


def test_a_generated_trace_replays_alike_from_its_file(tmp_path: Path) -> None:
    trace = generate(np.random.default_rng(1), architecture="colocated", tasks=2, iterations=3, size=24)
    write_trace(trace, tmp_path / "t.jsonl.gz")
    assert document("--trace", str(tmp_path / "t.jsonl.gz"))["policies"] == document(*SMALL)["policies"]


def test_a_trace_has_no_paper_beside_it(tmp_path: Path) -> None:
    done = replayed("--trace", str(written(tmp_path / "t.jsonl", HEADER, *requests(3))))
    assert done.exit_code == 0, done.stderr
    assert "paper" not in done.stdout
    assert "fetch" in done.stdout


@pytest.mark.parametrize(
    ("lines", "output"),
    [
        ([HEADER, {**requests(3)[0], "arrival_s": -1}], "t.jsonl:2: arrival_s is -1: give a finite number"),
        ([HEADER, "{"], "t.jsonl:2: is no JSON"),
        ([{"stages": []}], "t.jsonl:1: no header: begin the file with"),
        ([HEADER], "t.jsonl:1: no requests: put one a line after the header"),
        ([{**HEADER, "stages": [{"name": "x", "worker_cost": 1, "timeout_s": 1, "cold_start_s": -1}]}],
         "t.jsonl:1: cold_start_s of x is -1: give a finite number"),
        ([HEADER, requests(3)[0]], "t.jsonl: each task has one batch, which is its history: give two or more"),
    ],
)  # fmt: skip
def test_a_bad_trace_is_refused_in_one_line(tmp_path: Path, lines: list[object], output: str) -> None:
    done = replayed("--trace", str(written(tmp_path / "t.jsonl", *lines)))
    assert (done.exit_code, done.stdout) == (2, "")
    assert output in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_trace_that_is_not_there_and_one_with_other_sizes_are_refused(tmp_path: Path) -> None:
    assert "name a trace file" in replayed("--trace", str(tmp_path / "none")).stderr
    path = written(tmp_path / "t.jsonl", HEADER, *requests(3))
    done = replayed("--trace", str(path), "--tasks", "3")
    assert done.exit_code == 2
    assert "leave out --iterations" in done.stderr


def test_the_plot_is_a_picture_that_a_person_can_read(tmp_path: Path) -> None:
    done = replayed(*SMALL, "--json", "--plot", str(tmp_path / "out.png"))
    assert done.exit_code == 0, done.stderr
    json.loads(done.stdout)
    wide, high = png_size(tmp_path / "out.png")
    assert 1200 < wide < 3000
    assert 900 < high < 2500


def test_a_trace_of_ones_own_is_drawn_too(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", HEADER, *requests(3))
    done = replayed("--trace", str(path), "--plot", str(tmp_path / "out.png"))
    assert done.exit_code == 0, done.stderr
    assert png_size(tmp_path / "out.png")[0] > 1200


def test_a_plot_that_cannot_be_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = replayed("--plot", str(tmp_path / "none" / "out.png"))
    assert nowhere.exit_code == 2
    assert "name a file in a folder that is there" in nowhere.stderr
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as where it is not installed
    without = replayed("--plot", str(tmp_path / "out.png"))
    assert without.exit_code == 2
    assert "install treadle[plot]" in without.stderr


def test_help_lists_the_options() -> None:
    runner = CliRunner()
    assert "distrs" in runner.invoke(app, ["replay", "--help"]).stdout
    assert "--trace" in runner.invoke(app, ["replay", "distrs", "--help"]).stdout


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_it_at_once_and_cleanly() -> None:
    treadle = Path(sys.executable).with_name("treadle")
    running = subprocess.Popen(
        [treadle, "replay", "distrs", "--search-up-to", "0"],
        env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        parent, until = psutil.Process(running.pid), time.monotonic() + 60
        while len(workers := parent.children(recursive=True)) < 2:
            assert time.monotonic() < until, "no workers came up"
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=10)
    finally:
        running.kill()
        running.wait()
    assert (running.returncode, out) == (130, "")
    assert "interrupted" in err
    assert "Traceback" not in err
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not [worker for worker in alive if worker.status() != psutil.STATUS_ZOMBIE]
