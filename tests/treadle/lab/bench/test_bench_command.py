"""``treadle bench`` as a person types it: a tiny run, and its JSON."""

import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from treadle.lab.bench.figures import BenchError, BenchReport
from treadle.lab.bench.mesh import running_mesh
from treadle.lab.bench.peers.environment import PACKAGES, peers_python
from treadle.lab.bench.suite import MEASUREMENTS
from treadle.testing.servers import clean_environment

TREADLE = Path(sys.executable).with_name("treadle")
TINY = ("--seconds", "0.2", "--rounds", "1", "--callers", "4", "--bulk", "50", "--beside", "50", "--quick")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**clean_environment(), "STACK_SERVICES": "proxy,cpu_manager"}
    return subprocess.run(
        [TREADLE, "bench", *arguments], env=environ, capture_output=True, text=True, timeout=480, check=False
    )


@pytest.fixture(scope="module")
def tiny_run() -> subprocess.CompletedProcess[str]:
    return bench("--json", *TINY)


@pytest.mark.slow
@pytest.mark.timeout(540)
def test_a_tiny_run_measures_everything_and_prints_one_object(tiny_run: subprocess.CompletedProcess[str]) -> None:
    assert tiny_run.returncode == 0, tiny_run.stderr
    report = msgspec.json.decode(tiny_run.stdout, type=BenchReport)  # unknown fields are an error
    assert not report.failed
    assert not report.skipped
    assert {one.name.split(".")[0] for one in report.figures} == MEASUREMENTS.keys()
    names = [one.name for one in report.figures]
    assert len(set(names)) == len(names)


def test_no_stack_starts_for_measurements_that_use_none() -> None:
    run = bench("--json", *TINY, "--only", "decisions", "--only", "dispatch")
    assert run.returncode == 0, run.stderr
    assert "starting a stack" not in run.stderr
    report = msgspec.json.decode(run.stdout, type=BenchReport)
    assert {one.name.split(".")[0] for one in report.figures} == {"decisions", "dispatch"}


@pytest.mark.slow
@pytest.mark.timeout(540)
def test_every_figure_reports_whether_it_met_its_target(tiny_run: subprocess.CompletedProcess[str]) -> None:
    report = msgspec.json.decode(tiny_run.stdout, type=BenchReport)
    for one in report.figures:
        assert one.met is (None if one.target is None else one.target.met(one.value))
    aimed_at = {one.name for one in report.figures if one.target}
    assert aimed_at >= {
        "single.rate", "single.p50", "one.p50", "bulk.rate", "programs.rate", "programs.rate/interpreter",
        "programs.p50", "sleep.overhead", "rest.cpu.proxy", "rest.memory", "history.rate",
        "beside.one.p50", "beside.one.p99", "dispatch.nodes.1000", "dispatch.tenants.10000",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(540)
def test_progress_stays_out_of_the_object(tiny_run: subprocess.CompletedProcess[str]) -> None:
    assert "round 1 of 1, treadle" in tiny_run.stderr
    assert "round" not in tiny_run.stdout


def test_a_mesh_that_is_away_fails_its_measurements_and_leaves_out_what_it_hides() -> None:
    done = bench("--json", "--url", "http://127.0.0.1:9", "--only", "single", "--only", "rest")
    assert done.returncode == 1
    report = msgspec.json.decode(done.stdout, type=BenchReport)
    assert [one.name for one in report.failed] == ["single"]
    assert [one.name for one in report.skipped] == ["rest"]
    assert 5.0 < report.machine.loop_ms < 5000.0, "cores of today's machines, and some that are shared"


def test_an_unknown_measurement_is_answered_with_the_known_ones() -> None:
    done = bench("--only", "everything")
    assert done.returncode == 1
    assert "everything" in done.stderr
    assert "programs" in done.stderr


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(BenchError, match="write it as"):
        running_mesh("localhost:8700")


def test_peers_that_cannot_be_installed_are_reported_with_the_reason(tmp_path: Path) -> None:
    closed = tmp_path / "file"
    closed.write_text("")
    messages: list[str] = []
    with pytest.raises(BenchError, match="cannot make an environment"):
        peers_python(closed / "venv", messages.append)
    assert "installing the peers" in messages[0]


def test_the_peers_are_those_of_the_project_file() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())
    assert set(project["dependency-groups"]["peers"]) <= set(PACKAGES)
