"""`pip install treadle` outside the checkout: wheel and sdist, beside foreign packages of our names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.installed import CHECKOUT, OURS, Installed, build, install

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TESTS = "assert double(2) == 4\nassert double(-1) == -2\n"
PROGRAMS = {"right": "def double(x):\n    return 2 * x\n", "wrong": "def double(x):\n    return x\n"}
VERDICTS = {"right": "passed", "wrong": "failed"}


CLIENT = """
import sys
import treadle

url, tests, *programs = sys.argv[1:]
with treadle.Treadle(url) as mesh:
    stages = [treadle.StageTemplate(name="tests", kind="code.asserts")]
    mesh.put_task("client", treadle.Task(stages=stages))
    samples = [treadle.RewardRequest(params={"code": code, "tests": tests}) for code in programs]
    print(dict(sorted(mesh.grade("client", samples).scores.items())))
    trajectory = mesh.trajectories.open()
    print(mesh.trajectories.act(trajectory.id, "env.bash", {"line": "echo hello"}).output["output"].strip())
    mesh.trajectories.close(trajectory.id)
print([name for name in sys.modules if name.partition(".")[0] in ("shared", "services", "pydantic")])
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_the_mesh_runs_from_a_distribution(kind: str, built: dict[str, Path], tmp_path: Path, stack_home: Path) -> None:
    here = install(built[kind], tmp_path, stack_home, "[mesh]")
    nothing_of_ours_can_be_imported(here)
    assert here.treadle("openapi") == (CHECKOUT / "docs" / "openapi.json").read_text()
    here.treadle("up", "--detach", "--port", "0")
    try:
        processes_have_the_mesh_first(here)
        assert graded(here) == VERDICTS
        client_grades_and_acts(here)
    finally:
        here.treadle("down")
    assert here.run("treadle", "status").returncode == 3


def test_without_the_extra_light_commands_run_and_others_name_it(
    built: dict[str, Path], tmp_path: Path, stack_home: Path
) -> None:
    here = install(built["wheel"], tmp_path, stack_home)
    assert here.treadle("--version") == "treadle 0.1.0\n"
    assert "grade" in here.treadle("--help")
    assert here.treadle("openapi") == (CHECKOUT / "docs" / "openapi.json").read_text()
    here.treadle("openapi", "--out", "openapi.json")
    assert here.treadle("openapi", "--since", "openapi.json") == "no client of openapi.json breaks\n"
    refused = here.run("treadle", "up")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "pip install 'treadle[mesh]'" in refused.stderr
    nothing_of_ours_can_be_imported(here)


def nothing_of_ours_can_be_imported(here: Installed) -> None:
    """`-P` excludes the foreign folder, so a package that is found is ours. alembic is also a dependency."""
    code = f"from importlib.util import find_spec; print([n for n in {OURS[:2]} if find_spec(n)])"
    assert here.run("python", "-P", "-c", code).stdout == "[]\n"


def processes_have_the_mesh_first(here: Installed) -> None:
    services = json.loads(here.treadle("status", "--json"))["services"]
    pids = {one["name"]: one["pid"] for one in services}
    for name in ("proxy", "scaling_planner", "cpu_manager", "quota_manager", "trajectory_router"):
        process = Path("/proc", str(pids[name]))
        assert b"\0-P\0-m\0treadle.mesh\0" in (process / "cmdline").read_bytes()
        assert b"PYTHONPATH=" not in (process / "environ").read_bytes()


def client_grades_and_acts(here: Installed) -> None:
    url = next(one["url"] for one in json.loads(here.treadle("status", "--json"))["services"] if one["name"] == "proxy")
    done = here.run("python", "-P", "-c", CLIENT, url, TESTS, *PROGRAMS.values())
    assert done.returncode == 0, done.stderr
    scores, output, foreign = done.stdout.splitlines()
    assert (scores, output, foreign) == ("{'0': 1.0, '1': 0.0}", "hello", "[]")


def graded(here: Installed) -> dict[str, str]:
    """Verdict of each program, by `treadle grade`."""
    lines = [{"id": name, "params": {"code": code, "tests": TESTS}} for name, code in PROGRAMS.items()]
    (here.foreign / "programs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    here.treadle("grade", "programs.jsonl", "--kind", "code.asserts", "--out", "answers.jsonl")
    answers = [json.loads(line) for line in (here.foreign / "answers.jsonl").read_text().splitlines()]
    return {answer["id"]: answer["verdict"] for answer in answers}
