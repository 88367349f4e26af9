"""``treadle replay search`` as a person types it, over a small evaluation, and over traces of one's own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from treadle.cli.main import app

SCALE = 64
"""Divisor of batches and limits here: 32 trajectories."""
SYSTEMS = ("alone", "limiter, N x", "limiter, 1/N", "treadle")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("treadle.cli.replay_search.QUICK", SCALE)
        yield


@pytest.fixture(scope="module")
def small_document(_small: None) -> dict[str, Any]:
    return document("--quick", "--seeds", "2")


def replayed(*arguments: str, processes: int = 1) -> Result:
    return CliRunner().invoke(app, ["replay", "search", *arguments, "--processes", str(processes)])


def document(*arguments: str, processes: int = 1) -> dict[str, Any]:
    done = replayed("--json", *arguments, processes=processes)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def trace(path: Path, count: int = 6) -> Path:
    calls = [{"think_s": 1, "upstream": "search"}, {"think_s": 2, "upstream": "pages", "work": 1.5}]
    lines = ({"trajectory": number, "calls": calls, "last_s": 1} for number in range(count))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_tables_are_on_standard_output_and_progress_is_not(tmp_path: Path) -> None:
    done = replayed("--quick", "--seeds", "1", "--plot", str(tmp_path / "out.png"))
    assert done.exit_code == 0, done.stderr
    for output in ("DeepSearch, reproduced", "1.5×", "provider.overload", "Stated or assumed", "400 a second"):
        assert output in done.stdout
    for output in SYSTEMS:
        assert output in done.stdout
    assert "replaying" in done.stderr
    assert "replaying" not in done.stdout
    assert (tmp_path / "out.png").read_bytes().startswith(PNG)


def test_json_has_every_setting_and_system_and_figures_follow_from_them(small_document: dict[str, Any]) -> None:
    found = small_document
    runs = {(run["setting"], run["system"], run["seed"]): run for run in found["runs"]}
    named = ("as it is", *(f"{rate} a second" for rate in (25, 50, 100, 200, 400)))
    assert {(setting, system, seed) for setting in named for system in SYSTEMS for seed in (1, 2)} <= runs.keys()
    assert {run["batch"] for run in found["runs"]} == {2048 // SCALE}
    figures = {one["figure"]: one for one in found["figures"]}
    for setting in named:
        ratios = [runs[setting, "alone", seed]["step_s"] / runs[setting, "treadle", seed]["step_s"] for seed in (1, 2)]
        figure = figures[f"§6.2: step, alone / ours, {setting}"]
        assert figure["paper"] == 1.5
        assert figure["draws"] == pytest.approx(ratios)
        assert figure["reproduced"] == pytest.approx(np.mean(ratios))
    for run in found["runs"]:
        update_s = 600.0 if run["setting"] == "update of 600 s" else 120.0
        assert run["step_s"] == pytest.approx(run["rollout_s"] + update_s)
        assert all(0 <= part <= 1 + 1e-9 for part in (*run["use"].values(), run["useful_use"]))
    assert found["assumed"]["client"]["retries"] == 3
    assert found["assumed"]["client"]["timeout_s"] == 600


def test_any_number_of_processes_gives_the_same_document(tmp_path: Path) -> None:
    path = str(trace(tmp_path / "own.jsonl", count=40))
    assert document("--trace", path, processes=1) == document("--trace", path, processes=2)


def test_a_trace_of_ones_own_is_replayed_by_all_systems_and_drawn(tmp_path: Path) -> None:
    path = trace(tmp_path / "own.jsonl")
    found = document("--trace", str(path), "--seeds", "1", "--plot", str(tmp_path / "out.png"))
    assert [run["system"] for run in found["runs"]] == list(SYSTEMS)
    assert {(run["setting"], run["batch"]) for run in found["runs"]} == {("as it is", 6)}
    assert found["figures"] == []
    assert (tmp_path / "out.png").read_bytes().startswith(PNG)
    assert "one step" in replayed("--trace", str(path), "--seeds", "1").stdout.lower()


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
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


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ('{"trajectory": 0, "calls": []}', "trajectory 0 is on line 1 already"),
        ('{"trajectory": "x"}', "calls must be a list"),
        ('{"calls": []}', "give trajectory as a text or a whole number"),
        ('{"trajectory": "x", "calls": [{"upstream": "judge"}]}', "upstream of call 1 is 'judge': use search or pages"),
        ('{"trajectory": "x", "calls": [{"think": 1}]}', "call 1 has think: use think_s, upstream, work"),
        ('{"trajectory": "x", "calls": [{}, {"think_s": -1}]}', "think_s of call 2 is -1"),
        ('{"trajectory": "x", "calls": [], "last_s": NaN}', "last_s is nan"),
        ("[1]", "is no JSON object"),
        ("{", "is no JSON"),
    ],
)
def test_a_wrong_line_of_a_trace_is_named(tmp_path: Path, line: str, output: str) -> None:
    path = trace(tmp_path / "own.jsonl")
    path.write_text(f"{path.read_text()}\n{line}\n")
    done = replayed("--trace", str(path))
    assert done.exit_code == 2
    assert f"own.jsonl:8: {output}" in done.stderr


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text("\n")
    assert "no trajectories: put one a line" in replayed("--trace", str(tmp_path / "own.jsonl")).stderr


def test_without_matplotlib_a_plot_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = replayed("--quick", "--plot", str(tmp_path / "out.png"))
    assert done.exit_code == 2
    assert "install treadle[plot]" in done.stderr
