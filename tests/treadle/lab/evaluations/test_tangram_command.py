"""``treadle replay tangram`` as a person types it, over a small evaluation, and over traces of one's own."""

from __future__ import annotations

import gzip
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from treadle.cli.main import app
from treadle.lab.replay.tangram.evaluation import (
    CONTRASTS,
    NODES,
    OURS,
    PODS_NAME,
    RESERVING,
    SIZE,
    SIZES,
    SYSTEMS,
    WIDTHS,
    pods_of,
)

SCALE = 16
"""Scale of the evaluation here: batches of 8 to 96 on nodes of 16 cores."""
STEPS: list[dict[str, object]] = [
    {"think_s": 1, "kind": "tool", "work_s": 0.5},
    {"think_s": 2, "kind": "tests", "work_s": 40, "units": [1, 16], "elasticity": {"model": "amdahl", "serial": 0.1}},
]


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("treadle.cli.replay.QUICK", SCALE)
        yield


@pytest.fixture(scope="module")
def small_document(_small: None) -> dict[str, Any]:
    """Document of the evaluation, made in one process."""
    return document("--quick")


def replayed(*arguments: str, processes: int = 1, **environ: str) -> Result:
    command = ["replay", "tangram", *arguments, "--processes", str(processes)]
    return CliRunner().invoke(app, command, env=environ)


def document(*arguments: str, processes: int = 1, **environ: str) -> dict[str, Any]:
    done = replayed("--json", *arguments, processes=processes, **environ)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def trace(path: Path, count: int = 6) -> Path:
    lines = ({"trajectory": number, "group": "g", "steps": STEPS} for number in range(count))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def png_size(path: Path) -> tuple[int, int]:
    start = path.read_bytes()[:24]
    assert start[:8] == b"\x89PNG\r\n\x1a\n"
    wide, high = struct.unpack(">II", start[16:24])
    return wide, high


def test_tables_are_on_standard_output_and_progress_is_not(tmp_path: Path) -> None:
    done = replayed("--quick", "--plot", str(tmp_path / "out.png"))
    assert done.exit_code == 0, done.stderr
    for output in ("ARL-Tangram §6, reproduced", "27.7×", "4.33×", "1.89×", "3.1×", "< 2×", "9×", "2.8×", "0.428×"):
        assert output in done.stdout
    for output in ("timeout 120 s", "active for", "workload.serial", "pods.timeout_s", *SYSTEMS, *RESERVING):
        assert output in done.stdout
    assert "replaying" in done.stderr
    assert "replaying" not in done.stdout
    wide, high = png_size(tmp_path / "out.png")
    assert 1200 < wide < 3000
    assert 600 < high < 2500


def test_json_has_every_place_and_system_and_figures_follow_from_them(small_document: dict[str, Any]) -> None:
    found = small_document
    assert found["scale"] == SCALE
    runs = {(run["batch"], run["nodes"], run["system"]): run for run in found["runs"]}
    points = {(size, 5) for size in SIZES} | {(SIZE, nodes) for nodes in NODES}
    expected = {(*point, system) for point in points for system in (*map(pods_of, WIDTHS), OURS)}
    expected |= {(point.size, point.nodes, system) for point, others in CONTRASTS.items() for system in others}
    assert runs.keys() == expected
    for run in runs.values():
        acts = run["act_s"]
        assert acts["mean"] == pytest.approx(acts["queueing"] + acts["execution"] + acts["overhead"])
        assert acts["mean"] == pytest.approx(acts["environment"] + acts["reward"])
        assert acts["p50"] <= acts["p90"] <= acts["p99"]
        assert acts["p99"] <= run["batches"] * run["step_s"] * (1 + 1e-9), "a step is the mean over batches"
    figures = {one["figure"]: one["reproduced"] for one in found["figures"]}
    act = {key: run["act_s"]["mean"] for key, run in runs.items()}
    assert figures["8(a): ACT, pods / ours, batch 1,536, 1,280 cores"] == pytest.approx(
        act[1536, 5, PODS_NAME] / act[1536, 5, OURS]
    )
    assert figures["9: ACT, DoP 16 / elastic, batch 1,280, 1,280 cores"] == pytest.approx(
        act[SIZE, 5, "DoP 16"] / act[SIZE, 5, OURS]
    )
    assert found["assumed"]["pods"]["request"] == 0.5
    assert figures["8(a): ACT, pods, DoP 1 / ours, 768 cores, batch 1,280"] == pytest.approx(
        act[SIZE, 3, "pods, DoP 1"] / act[SIZE, 3, OURS]
    )
    swept = {
        (one["batch"], one["nodes"], one["width"], one["control_plane"], one["timeout_s"]): one["ratio"]
        for one in found["sweep"]
    }
    assert len(swept) == 4 * 2 * 3 * 4
    assert {point[:2] for point in swept} == {(128, 5), (1280, 5), (1536, 5), (1280, 3)}, "where the paper has numbers"
    for width in (1, 4):
        assert swept[1536, 5, width, "5 pods/s", 30.0] > swept[1536, 5, width, "20 pods/s", 300.0]


def test_any_number_of_processes_gives_the_same_document(tmp_path: Path) -> None:
    path = str(trace(tmp_path / "own.jsonl", count=40))
    assert document("--trace", path, processes=1) == document("--trace", path, processes=2)


def test_a_trace_of_ones_own_is_replayed_by_all_systems_and_drawn(tmp_path: Path) -> None:
    path = trace(tmp_path / "own.jsonl")
    found = document("--trace", str(path), "--nodes", "1", "--plot", str(tmp_path / "out.png"))
    assert [run["system"] for run in found["runs"]] == [*RESERVING, *SYSTEMS]
    assert {(run["batch"], run["cores"]) for run in found["runs"]} == {(6, 256)}
    assert found["figures"] == found["sweep"] == []
    dops = {run["system"]: run["mean_dop"] for run in found["runs"]}
    assert (dops["DoP 4"], dops["DoP 16"], dops["fewest cores"], dops["pods, DoP 1"]) == (4, 16, 1, 1)
    assert png_size(tmp_path / "out.png")[0] > 1000
    assert "6 trajectories" in replayed("--trace", str(path)).stdout


def test_recorded_agents_are_replayed_from_a_folder_of_data(tmp_path: Path, small_document: dict[str, Any]) -> None:
    waits = [{"type": "n", "api_time": 3.0, "think_time": 1.0, "input_types": ["tool_result"]}] * 8
    for name, line in (
        ("traces/agentic_coding_sessions", {"requests": waits}),
        ("agents/mini_swe_agent_commands", {"steps": [{"gap_s": 2.0}]}),
        ("agents/swe_agent_steps", {"steps": [{"execution_time_s": 0.5}]}),
    ):
        path = tmp_path / f"{name}.jsonl.gz"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(json.dumps(line).encode()))
    found = document("--trace", "data", "--quick", TREADLE_DATA=str(tmp_path))
    assert len(found["runs"]) == len(small_document["runs"])
    assert found["figures"] != small_document["figures"]


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("--trace", "data", "--data", "nowhere"), "set TREADLE_DATA to the folder with agents/ and traces/"),
        (("--trace", "nowhere.jsonl"), "cannot read nowhere.jsonl (No such file or directory)"),
        (("--trace", "nowhere.jsonl", "--quick"), "leave out --quick"),
        (("--quick", "--plot", "nowhere/out.png"), "name a file in a folder that is there"),
    ],
)
def test_impossible_arguments_are_reported_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = replayed(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert output in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_line_of_a_trace_is_named(tmp_path: Path) -> None:
    path = trace(tmp_path / "own.jsonl")
    path.write_text(path.read_text() + '{"trajectory": "x", "steps": [{"kind": "tool"}]}\n')
    done = replayed("--trace", str(path))
    assert done.exit_code == 2
    assert "own.jsonl:7: work_s of step 1 is None" in done.stderr


def test_a_trace_that_no_node_could_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"trajectory": "x", "steps": [{"kind": "build", "work_s": 1, "units": [257, 257]}]}\n')
    done = replayed("--trace", str(path))
    assert done.exit_code == 2
    assert "x needs 257 cores" in done.stderr


def test_without_matplotlib_a_plot_is_refused_and_the_rest_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = trace(tmp_path / "own.jsonl", count=2)
    without = replayed("--trace", str(path), "--plot", str(tmp_path / "out.png"))
    assert without.exit_code == 2
    assert "install treadle[plot]" in without.stderr
    assert replayed("--trace", str(path)).exit_code == 0
