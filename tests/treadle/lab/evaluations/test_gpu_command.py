"""``treadle replay gpu`` as a person types it, over a small evaluation."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from treadle.cli.main import app
from treadle.lab.evaluations.gpu import jobs
from treadle.lab.replay.gpu import kernels, swaps
from treadle.lab.traces.kernels import KERNELS, OPERATORS

SYSTEMS = ("static", "FIFO swapper", "treadle", "treadle, DoP 4")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    """Batches of 12 and 24, traces of 12 calls, and DistRS with batches of 16."""
    defaults = (jobs.SEEDS, (12, 24), 12, True, None, swaps.SwapTraces(calls=12), (), 16)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("treadle.cli.replay_gpu.QUICK_SIZES", (12, 24))
        patched.setattr(jobs.GpuWorkload.__init__, "__defaults__", defaults)
        patched.setattr(kernels.kernel_trace, "__defaults__", (kernels.KernelRuns(iterations=3),))
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "gpu").mkdir()
    write(folder / OPERATORS, "level,problem,hardware,eager_mean_ms", "level1,1_Sum,H100,2.5", "level1,2_Max,H100,4")
    write(folder / KERNELS, "level,problem_id,mean_ms", "1,1,3.5", "1,2,8", "1,99,7")
    return folder


def write(path: Path, *lines: str) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))


def replayed(*arguments: str, processes: int = 1) -> Result:
    return CliRunner().invoke(app, ["replay", "gpu", "--quick", *arguments, "--processes", str(processes)])


def document(*arguments: str) -> dict[str, Any]:
    done = replayed("--json", *arguments)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def found(_small: None, data: Path) -> dict[str, Any]:
    return document("--seeds", "2", "--data", str(data))


def test_tables_are_on_standard_output_and_the_picture_is_drawn(tmp_path: Path, data: Path) -> None:
    done = replayed("--seeds", "1", "--data", str(data), "--plot", str(tmp_path / "out.png"))
    assert done.exit_code == 0, done.stderr
    for output in ("GPUs, reproduced", "Table 1", "Stated or assumed", "teachers.act_s", "Belady", "zq-dedicated"):
        assert output in done.stdout
    for output in SYSTEMS:
        assert output in done.stdout
    assert "replaying" in done.stderr
    assert "replaying" not in done.stdout
    assert (tmp_path / "out.png").read_bytes().startswith(PNG)


def test_figures_follow_from_the_runs(found: dict[str, Any]) -> None:
    runs = {(run["setting"], run["system"], run["seed"]): run for run in found["runs"]}
    for mix in ("MOPD", "MOPD+Search"):
        for size in (12, 24):
            assert {(f"{mix}, batch {size}", system, seed) for system in SYSTEMS for seed in (1, 2)} <= runs.keys()
    figures = {one["figure"]: one for one in found["figures"]}
    setting = "MOPD, batch 24"
    ratios = [runs[setting, "static", one]["act_s"] / runs[setting, "treadle", one]["act_s"] for one in (1, 2)]
    figure = figures[f"8(b): ACT, static / treadle, {setting}"]
    assert figure["draws"] == pytest.approx(ratios)
    assert figure["reproduced"] == pytest.approx(np.mean(ratios))
    for run in runs.values():
        assert run["act_s"] == pytest.approx(run["queue_s"] + run["execution_s"] + run["overhead_s"])


def test_fewer_gpus_are_those_of_the_first_cluster_that_is_as_fast(found: dict[str, Any]) -> None:
    runs = {(run["setting"], run["system"], run["seed"]): run for run in found["runs"]}
    figure = next(
        one
        for one in found["figures"]
        if one["figure"] == "8(b): GPUs for the same ACT, treadle, DoP 4 / static, 1 replica"
    )
    expected = []
    for seed in (1, 2):
        static = runs["static, 1 replica", "static", seed]
        mine = [runs[f"{8 * nodes} GPUs", "treadle, DoP 4", seed] for nodes in range(1, 6)]
        enough = [run["gpus"] / static["gpus"] for run in mine if run["act_s"] <= static["act_s"]]
        expected += enough[:1]
    assert figure["reproduced"] == (pytest.approx(np.mean(expected)) if len(expected) == 2 else None)


def test_swaps_and_kernels_are_in_the_document(found: dict[str, Any]) -> None:
    assert {(one["slots"], one["seed"]) for one in found["swaps"]} == {
        (slots, seed) for slots in (1, 2) for seed in range(1, 11)
    }
    assert {(one["architecture"], one["policy"], one["seed"]) for one in found["kernels"]} == {
        (architecture, policy, seed)
        for architecture in ("colocated", "disaggregated")
        for policy in jobs.POLICIES
        for seed in (1, 2)
    }
    assert found["assumed"]["teachers"]["count"] == 9


def test_given_restores_apply_to_ours_and_without_data_there_are_no_kernels(
    found: dict[str, Any], tmp_path: Path
) -> None:
    done = replayed("--json", "--seeds", "1", "--restore-s", "30", "--data", str(tmp_path))
    assert done.exit_code == 0
    dear = json.loads(done.stdout)
    assert dear["kernels"] == []
    assert "is not there, so DistRS's evaluation with kernels is left out: set TREADLE_DATA" in done.stderr
    at = ("MOPD, batch 24", 1)
    before, after = (
        {run["system"]: run for run in one["runs"] if (run["setting"], run["seed"]) == at} for one in (found, dear)
    )
    assert after["static"] == before["static"]
    assert after["treadle"]["overhead_s"] > before["treadle"]["overhead_s"] + 1.0


@pytest.mark.parametrize(
    ("lines", "output"),
    [
        (("level,problem_id", "1,1"), "has no column mean_ms"),
        (("level,problem_id,mean_ms", "1,1,fast"), "mean_ms is 'fast': milliseconds are needed"),
        (("level,problem_id,mean_ms", "1,77,1"), "has no kernel of an operator"),
    ],
)
def test_wrong_data_is_reported_before_the_run(tmp_path: Path, lines: tuple[str, ...], output: str) -> None:
    (tmp_path / "gpu").mkdir()
    write(tmp_path / OPERATORS, "level,problem,eager_mean_ms", "level1,1_Sum,2.5")
    write(tmp_path / KERNELS, *lines)
    done = replayed("--data", str(tmp_path))
    assert (done.exit_code, done.stdout) == (2, "")
    assert output in done.stderr


def test_without_matplotlib_a_plot_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = replayed("--plot", str(tmp_path / "out.png"))
    assert done.exit_code == 2
    assert "install treadle[plot]" in done.stderr
