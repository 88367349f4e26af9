from __future__ import annotations

import textwrap

import pytest

from services.cpu_manager.graders.protocol import Verdict
from services.cpu_manager.graders.python_function import PythonFunctionGrader, zygote_of
from services.cpu_manager.kinds import PythonFunction
from services.cpu_manager.sandbox.protocol import EndedBy, Exit, PythonJob, Sandbox
from tests.services.cpu_manager.graders.sandboxes import FakeSandbox, context

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def scored(
    sandbox: Sandbox,
    body: str,
    solution: str = "42",
    *,
    error_score: float = 0.0,
    exception_score: float | None = None,
    **params: object,
) -> Verdict:
    module = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
    module += textwrap.indent(textwrap.dedent(body), "    ")
    return await PythonFunctionGrader().grade(
        PythonFunction(module=module, solution_str=solution, ground_truth="42", **params),  # type: ignore[arg-type]
        context(sandbox, error_score=error_score, exception_score=exception_score),
    )


@pytest.mark.parametrize(
    ("returned", "score", "passed"),
    [("0.25", 0.25, None), ("3", 3.0, None), ("True", 1.0, True), ("False", 0.0, False), ("-1.5", -1.5, None)],
)
async def test_a_number_is_the_score_and_a_bool_passes_or_not(
    sandbox: Sandbox, returned: str, score: float, passed: bool | None
) -> None:
    verdict = await scored(sandbox, f"return {returned}")
    assert (verdict.status, verdict.score, verdict.passed, verdict.output) == ("ok", score, passed, {})


async def test_keys_beside_the_score_are_kept(sandbox: Sandbox) -> None:
    verdict = await scored(sandbox, "return {'score': 0.5, 'acc': True, 'why': ['a', None], 'odd': {1, 1}}")
    assert (verdict.score, verdict.output) == (0.5, {"acc": True, "why": ["a", None], "odd": "{1}"})


async def test_it_is_called_as_verl_calls_it(sandbox: Sandbox) -> None:
    verdict = await scored(
        sandbox,
        "return {'score': 1, 'seen': [data_source, solution_str, ground_truth, extra_info]}",
        data_source="gsm8k",
        extra_info={"index": 7},
    )
    assert verdict.output["seen"] == ["gsm8k", "42", "42", {"index": 7}]


async def test_a_coroutine_is_awaited(sandbox: Sandbox) -> None:
    module = "async def judge(**arguments):\n    return 0.75\n"
    params = PythonFunction(module=module, function="judge", solution_str="x")
    verdict = await PythonFunctionGrader().grade(params, context(sandbox))
    assert verdict.score == 0.75


async def test_a_scalar_with_item_is_a_number(sandbox: Sandbox) -> None:
    verdict = await scored(sandbox, "class Scalar:\n    def item(self): return 0.5\nreturn Scalar()")
    assert verdict.score == 0.5


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 1 / 0", "ZeroDivisionError"),
        ("return None", "finite number"),
        ("return 'good'", "finite number"),
        ("return float('nan')", "finite number"),
        ("return {'acc': 1}", "without 'score'"),
        ("return {'score': 1, 'nan': float('nan')}", "ValueError"),
    ],
)
async def test_a_function_that_fails_is_refused_and_never_scored(sandbox: Sandbox, body: str, message: str) -> None:
    verdict = await scored(sandbox, body)
    assert (verdict.status, verdict.passed, verdict.score) == ("refused", None, None)
    assert message in verdict.reason


ENDINGS = [
    ("raise SystemExit(0)", "SystemExit"),
    ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ("class Mine(BaseException): pass\nraise Mine", "Mine"),
    ("import os\nos._exit(0)", "exited with 0 before compute_score returned"),
    ("import os\nos.kill(os.getpid(), 9)", "killed by signal 9 before compute_score returned"),
]


@pytest.mark.parametrize(("body", "message"), ENDINGS)
async def test_a_sample_that_ends_its_grader_is_scored(sandbox: Sandbox, body: str, message: str) -> None:
    verdict = await scored(sandbox, body)
    assert (verdict.status, verdict.passed, verdict.score) == ("ok", False, 0.0), verdict
    named = await scored(sandbox, body, error_score=-2.0)
    assert (named.status, named.score) == ("ok", -2.0)
    assert message in named.reason


@pytest.mark.parametrize(("body", "message"), ENDINGS)
async def test_an_end_before_the_call_begins_is_refused(sandbox: Sandbox, body: str, message: str) -> None:
    params = PythonFunction(module=body + "\ndef compute_score(**_): return 1\n", solution_str="x")
    verdict = await PythonFunctionGrader().grade(params, context(sandbox, error_score=-2.0, exception_score=-3.0))
    assert (verdict.status, verdict.score) == ("refused", None)
    assert message in verdict.reason


async def test_an_ordinary_exception_is_scored_where_the_stage_names_a_score(sandbox: Sandbox) -> None:
    verdict = await scored(sandbox, "return 1 / 0", exception_score=-0.5)
    assert (verdict.status, verdict.passed, verdict.score) == ("ok", False, -0.5)
    assert "ZeroDivisionError" in verdict.reason


async def test_a_memory_limit_after_the_call_began_is_scored(walls: Sandbox) -> None:
    verdict = await scored(walls, "held = [bytearray(1 << 20) for _ in range(4096)]", memory_mb=64, error_score=-2.0)
    assert (verdict.status, verdict.score) == ("ok", -2.0), verdict


async def test_the_refusal_shows_where_the_function_failed(sandbox: Sandbox) -> None:
    verdict = await scored(sandbox, "return int('no number')")
    assert "in compute_score" in verdict.output["traceback_tail"]


async def test_a_module_without_the_function_is_refused_with_its_name(sandbox: Sandbox) -> None:
    params = PythonFunction(module="x = 1", function="judge", solution_str="x")
    verdict = await PythonFunctionGrader().grade(params, context(sandbox))
    assert verdict.status == "refused"
    assert "'judge'" in verdict.reason


async def test_an_endless_function_is_a_timeout(sandbox: Sandbox) -> None:
    verdict = await scored(sandbox, "while True: pass", timeout_s=0.5)
    assert (verdict.status, verdict.score) == ("timeout", None)


EXECUTES = "space = {}\nexec(solution_str, space)\nreturn float(space.get('answer') == ground_truth)"
"""A scoring function that runs the solution beside itself, as many do."""


@pytest.mark.parametrize(
    "solution",
    [
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "import json, builtins; json.dumps = lambda *a, **k: '{}'; builtins.repr = lambda o: '1'",
        "import os; os.closerange(3, 65536)",
        "import os\nfor d in range(3, 1024):\n    try: os.write(d, b'0' * 32 + b'{}')\n    except OSError: pass",
        "import sys\nf = sys._getframe()\nwhile f:\n    f.f_locals.get('report', id)(b'{}')\n    f = f.f_back",
        "import json.encoder\njson.encoder.c_make_encoder = None",
    ],
)
async def test_a_solution_that_is_executed_cannot_write_its_own_score(sandbox: Sandbox, solution: str) -> None:
    verdict = await scored(sandbox, EXECUTES, solution=solution)
    assert verdict.score in (None, 0.0), verdict


@pytest.mark.parametrize("name", ["float", "isinstance", "type", "dict", "hasattr", "bool"])
async def test_builtins_that_a_solution_patched_do_not_touch_the_score(sandbox: Sandbox, name: str) -> None:
    solution = f"import builtins\nbuiltins.{name} = lambda *a: 1.0"
    verdict = await scored(sandbox, "exec(solution_str, {})\nreturn 0", solution=solution)
    assert (verdict.status, verdict.score) == ("ok", 0.0), verdict


async def test_an_executed_solution_that_is_right_is_scored(sandbox: Sandbox) -> None:
    verdict = await scored(sandbox, EXECUTES, solution="answer = '42'")
    assert verdict.score == 1.0


@pytest.mark.parametrize(
    ("ended_by", "status"), [("lost", "lost"), ("memory-limit", "refused"), ("wall-limit", "timeout")]
)
async def test_limits_of_the_trainers_own_function_are_no_wrong_answers(ended_by: EndedBy, status: str) -> None:
    verdict = await scored(FakeSandbox(lambda job: Exit(ended_by=ended_by)), "return 1")
    assert (verdict.status, verdict.score) == (status, None)


async def test_tenants_and_modules_have_zygotes_of_their_own() -> None:
    sandbox = FakeSandbox(lambda job: Exit(ended_by="lost"))
    await scored(sandbox, "return 1")
    (job,) = sandbox.jobs
    assert isinstance(job, PythonJob)
    names = {job.zygote, zygote_of("bob", job.source), zygote_of("ada", job.source + "\n"), "default", "math"}
    assert len(names) == 5
    assert job.zygote == zygote_of("ada", job.source)


async def test_a_result_that_is_too_long_is_refused_with_the_reason(sandbox: Sandbox) -> None:
    verdict = await scored(sandbox, "return {'score': 1, 'why': 'a' * 2_000_000}")
    assert verdict.status == "refused"
    assert "there is room for" in verdict.reason


async def test_halves_of_letters_become_question_marks(sandbox: Sandbox) -> None:
    verdict = await scored(sandbox, "return {'score': 1, 'why': 'half \\ud800'}")
    assert (verdict.status, verdict.score, verdict.output) == ("ok", 1.0, {"why": "half ?"})
    raised = await scored(sandbox, "raise ValueError('half \\ud800')")
    assert (raised.status, raised.reason) == ("refused", "compute_score raised ValueError: half ?")
