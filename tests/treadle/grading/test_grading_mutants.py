from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.grading.humaneval import (
    Generation,
    HumanEvalProblem,
    generation_lines,
    mutant_groups,
    packaged_problems,
    sample,
)
from treadle.grading.mutants import endless, mutants

PROBLEMS = packaged_problems()
LOOP = '''
def helper(x):
    return x + 1

def total(numbers):
    """Sum. 1 + 1."""
    result = 0
    for place in range(0, len(numbers)):
        if numbers[place] > 0 and helper(place):
            result += numbers[place]
    return result
'''


@settings(deadline=None)
@given(st.sampled_from(PROBLEMS), st.integers(0, 20), st.integers())
def test_mutants_parse_differ_and_are_decided_by_the_seed(problem: HumanEvalProblem, count: int, seed: int) -> None:
    made = mutants(problem.reference, problem.entry_point, count, random.Random(seed))
    assert made == mutants(problem.reference, problem.entry_point, count, random.Random(seed))
    trees = {ast.dump(ast.parse(mutant.code)) for mutant in made}
    assert len(trees) == count
    assert ast.dump(ast.parse(problem.reference)) not in trees
    for mutant in made:
        compile(mutant.code, "mutant", "exec")


def test_another_seed_gives_other_mutants() -> None:
    first, second = (mutants(LOOP, "total", 5, random.Random(seed)) for seed in (1, 2))
    assert {each.code for each in first} != {each.code for each in second}


def test_a_mutant_leaves_everything_but_the_function_body_alone() -> None:
    for mutant in mutants(LOOP, "total", 20, random.Random(0)):
        helper, total = ast.parse(mutant.code).body
        assert isinstance(total, ast.FunctionDef)
        assert ast.unparse(helper) == "def helper(x):\n    return x + 1"
        assert ast.get_docstring(total) == "Sum. 1 + 1."


def test_every_sort_of_change_occurs() -> None:
    changes = " ".join(mutant.change for mutant in mutants(LOOP, "total", 30, random.Random(0)))
    for part in ("Add -> Sub", "Gt -> ", "And -> Or", "0 -> 1", "range ends", "turned round", "result dropped"):
        assert part in changes


def test_without_further_changes_the_mutants_return_constants() -> None:
    made = mutants("def f():\n    pass\n", "f", 3, random.Random(0))
    assert [mutant.change for mutant in made] == ["returns 0", "returns 1", "returns 2"]


def test_a_module_without_the_function_is_refused() -> None:
    with pytest.raises(ValueError, match="does not define g"):
        mutants(LOOP, "g", 1, random.Random(0))


def test_an_endless_mutant_begins_with_an_infinite_loop() -> None:
    total = ast.parse(endless(LOOP, "total").code).body[1]
    assert isinstance(total, ast.FunctionDef)
    assert ast.get_docstring(total) == "Sum. 1 + 1."
    assert ast.unparse(total.body[1]) == "while True:\n    pass"


def test_groups_hold_one_reference_and_as_many_mutants_as_make_them_full() -> None:
    lines = list(mutant_groups(PROBLEMS, 8, seed=1))
    assert len(PROBLEMS) == 164
    assert len(lines) == 1312 == len({line.id for line in lines})
    assert {line.group for line in lines} == {problem.task_id for problem in PROBLEMS}
    assert sum(line.expect == "passed" for line in lines) == 164
    assert sum(line.expect == "timeout" for line in lines) == 4
    assert [line.id for line in mutant_groups(PROBLEMS[:1], 1, seed=1)] == ["HumanEval/0/reference"]


def generation(verdict: str) -> Generation:
    return Generation("HumanEval/0", "m", 0, "body", "", verdict)  # type: ignore[arg-type]  # one of the literals


@settings(deadline=None)
@given(st.lists(st.sampled_from(["passed", "timeout"])), st.integers(0, 60), st.integers())
def test_a_sample_is_seeded_without_repeats_and_shy_of_timeouts(verdicts: list[str], count: int, seed: int) -> None:
    recorded = [generation(verdict) for verdict in verdicts]
    places = sample(recorded, count, random.Random(seed))
    assert places == sample(recorded, count, random.Random(seed)) == sorted(set(places))
    assert len(places) <= count
    timeouts = sum(recorded[place].verdict == "timeout" for place in places)
    assert timeouts == min(verdicts.count("timeout"), -(-count // 50))


def test_a_program_is_put_together_as_when_its_verdict_was_recorded() -> None:
    problem = PROBLEMS[0]
    body = generation("passed")
    assert body.program(problem) == problem.prompt + "\n"
    whole = Generation("HumanEval/0", "m", 0, "whole", "def f(): pass", "passed")
    assert whole.program(problem) == f"{problem.prompt}    pass\n\ndef f(): pass\n"


def test_without_recorded_generations_their_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"humaneval_problems\.jsonl\.gz"):
        generation_lines(tmp_path, 10, seed=1)
