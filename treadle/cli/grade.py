"""``treadle grade``."""

import asyncio
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from shared.api.tasks import Task
from treadle.cli.proxy import BATCH_CANCELLED, WRONG, CommandFailed, check_proxy, exit_status, proxy_url
from treadle.cli.up import Home
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.errors import TreadleError
from treadle.client.graded import GradedBatch
from treadle.client.progress import ProgressBar
from treadle.grading.check import Checked, check_file
from treadle.grading.format import GradingFile, GradingLine, read_file
from treadle.grading.job import GradingJob, declared, run_job, workflow_of
from treadle.grading.output import OutputFile
from treadle.grading.render import show
from treadle.grading.report import GradingReport

DISAGREES, NO_VERDICT, NOT_WRITTEN = 1, 4, 5
"""Exit statuses; see `grade`."""
COMPLAINTS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of the command."""

    file: Path
    task: str | None
    kind: str | None
    out: Path | None
    expect: str
    batch_size: int | None
    skip_bad: bool
    key: str
    tenant: str | None


@dataclass(frozen=True, slots=True)
class Graded:
    """Result of the command."""

    report: GradingReport
    lines: Sequence[GradingLine]
    batches: Sequence[GradedBatch]


def register(app: typer.Typer) -> None:
    app.command("grade")(grade)


def grade(
    file: Annotated[Path, typer.Argument(help="JSON Lines, gzipped or not.", exists=True, dir_okay=False)],
    task: Annotated[str | None, typer.Option(help="Task to grade under. [default: the file's, or its name]")] = None,
    kind: Annotated[str | None, typer.Option(help="Declare the task as one stage of this kind.")] = None,
    url: Annotated[str | None, typer.Option(help="The proxy. [default: TREADLE_URL, or the stack that is up]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write each line's answer to this file, as JSON Lines.")] = None,
    expect: Annotated[str, typer.Option(help="Field with the recorded verdict: expect, or one of meta.")] = "expect",
    batch_size: Annotated[int | None, typer.Option(min=1, help="Requests of a batch. [default: all]")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad lines out instead of stopping.")] = False,
    key: Annotated[str | None, typer.Option(help="Key of the run: the same key continues an interrupted run.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Tenant of the work. [default: the default tenant]")] = None,
    home: Home = None,
) -> None:
    """Grade the programs or answers in FILE and report rewards, times and resources.

    A line: {"id": "p1/0", "params": {...}, "group": "p1", "stage_params": {...}, "priority": 0, "expect": "passed",
    "meta": {...}}; only id is always required. The first line may be a header that declares the task:
    {"treadle": 1, "task": "name", "workflow": {"stages": [{"name": "run", "kind": "code.asserts"}]}}.
    docs/grade.md has all fields. The whole file is checked before anything is submitted.

    Exit status: 0 graded; 1 a recorded verdict disagrees; 2 the file or an option is wrong; 3 no stack answers;
    4 some lines got no verdict; 5 reported, but --out could not be written; 130 interrupted.
    """
    options = Options(file, task, kind, out, expect, batch_size, skip_bad, key or uuid.uuid4().hex[:12], tenant)
    with exit_status("grade", BATCH_CANCELLED), _out(options) as answers:
        graded = asyncio.run(grade_file(options, url, home))
        try:
            _print(graded.report, as_json)
        finally:  # an error of one of the two does not prevent the other
            _write(options, answers, graded)
    raise typer.Exit(status_of(graded.report))


def _out(options: Options) -> AbstractContextManager[OutputFile | None]:
    """The file of --out, if there is one.

    Raises:
        CommandFailed: it cannot be written.
    """
    if options.out is None:
        return nullcontext()
    try:
        if options.out.exists() and options.out.samefile(options.file):
            raise CommandFailed(f"--out {options.out} is the file to grade: name another; nothing was submitted", WRONG)
        return OutputFile(options.out)
    except OSError as error:
        why = f"cannot write --out {options.out} ({error.strerror})"
        raise CommandFailed(f"{why}: name a file that can be written; nothing was submitted", WRONG) from error


def _print(report: GradingReport, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        show(report, Console())


def _write(options: Options, answers: OutputFile | None, graded: Graded) -> None:
    if answers is None:
        return
    try:
        answers.write(graded.lines, graded.batches)
    except OSError as error:
        why = f"not all answers could be written to {options.out} ({error.strerror})"
        help_ = f"the same command with --key {options.key} and another --out writes them and runs nothing again"
        raise CommandFailed(f"{why}; {help_}", NOT_WRITTEN) from error


def status_of(report: GradingReport) -> int:
    """Return the exit status of a report."""
    if report.agreement is not None and report.agreement.disagreements:
        return DISAGREES
    complete = not (report.rewards.verdicts["masked"] or report.rejected or report.unanswered)
    return 0 if complete else NO_VERDICT


async def grade_file(options: Options, url: str | None, home: Path | None) -> Graded:
    """Check the file, submit its lines, read the answers and return the report.

    Raises:
        CommandFailed, StackError, TreadleError: the message has the reason and what to do.
    """
    found, workflow = _read(options)
    name = options.task or found.task or _slug(options.file)
    checked = _accepted(options, check_file(found, workflow, options.expect))
    async with AsyncTreadle(proxy_url(url, home), tenant=options.tenant) as client:
        await check_proxy(client)
        if workflow is None:
            workflow = await declared(client, name)
            checked = _accepted(options, check_file(found, workflow, options.expect))
        else:
            await client.put_task(name, workflow.model_dump(mode="json", exclude_unset=True))
        job = GradingJob(name, workflow, checked.lines, options.key, options.batch_size, checked.expected)
        with _resumable(options.key), ProgressBar(len(job.lines), name) as bar:
            report, batches = await run_job(client, job, bar)
    return Graded(report, job.lines, batches)


def _read(options: Options) -> tuple[GradingFile, Task | None]:
    try:
        found = read_file(options.file)
    except OSError as error:
        raise CommandFailed(f"cannot read {options.file}: {error}", WRONG) from error
    if options.kind is None:
        return found, found.workflow
    if found.workflow is not None:
        raise CommandFailed(f"{options.file} has a workflow in its header: leave out --kind", WRONG)
    try:
        return found, workflow_of(options.kind)
    except ValueError as error:
        raise CommandFailed(str(error), WRONG) from error


def _accepted(options: Options, checked: Checked) -> Checked:
    """Return the checked file if it may be submitted. Print its complaints.

    Raises:
        CommandFailed: it may not be submitted.
    """
    for complaint in checked.complaints[:COMPLAINTS_SHOWN]:
        typer.echo(f"{options.file}: {complaint}", err=True)
    if (more := len(checked.complaints) - COMPLAINTS_SHOWN) > 0:
        typer.echo(f"{options.file}: and {more} more", err=True)
    if checked.fatal:
        raise CommandFailed("the header is wrong; nothing was submitted", WRONG)
    if checked.complaints and not options.skip_bad:
        raise CommandFailed("nothing was submitted: mend these lines, or leave them out with --skip-bad", WRONG)
    if not checked.lines:
        raise CommandFailed(f"{options.file} has no line to grade", WRONG)
    return checked


@contextmanager
def _resumable(key: str) -> Iterator[None]:
    try:
        yield
    except TreadleError:
        typer.echo(f"the batch goes on; read its answers and submit the rest with --key {key}", err=True)
        raise


def _slug(file: Path) -> str:
    """Return a task's name for a file: `step-7` for `runs/step 7.jsonl.gz`."""
    stem = file.name.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:64] or "grade"
