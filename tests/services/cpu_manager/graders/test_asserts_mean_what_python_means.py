"""Honest programs: the verdict is that of `python3 program.py` with code, tests and the call of check in one file."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from services.cpu_manager.graders.code_asserts import CodeAssertsGrader, asserts_of
from services.cpu_manager.graders.protocol import Verdict
from services.cpu_manager.kinds import CodeAsserts
from services.cpu_manager.sandbox.protocol import EndedBy, Exit, PythonJob, Sandbox
from tests.services.cpu_manager.graders.sandboxes import FakeSandbox, context

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHECK = "def check(candidate):\n    assert candidate(1) == 2\n"

PROGRAMS = {
    "right": ("def f(x): return x + 1", CHECK),
    "wrong": ("def f(x): return x", CHECK),
    "raises": ("def f(x): return [][x]", CHECK),
    "raises an assertion of its own": ("def f(x): raise AssertionError('mine')", CHECK),
    "raises a kind of assertion": ("class Odd(AssertionError): pass\ndef f(x): raise Odd", CHECK),
    "syntax error": ("def f(x) return x", CHECK),
    "indentation error": ("def f(x):\nreturn x", CHECK),
    "names missing": ("def g(x): return x + 1", CHECK),
    "runs as __main__": ("def f(x): return x\nif __name__ == '__main__':\n    def f(x): return x + 1", CHECK),
    "future annotations": ("from __future__ import annotations\ndef f(x: Missing) -> Unknown: return x + 1", CHECK),
    "future reaches the tests": (
        "from __future__ import annotations\nf = 0",
        "def g(x: Missing): pass\nf = lambda x: x + 1\n" + CHECK,
    ),
    "no future in the tests": ("f = lambda x: x + 1", "def g(x: Missing): pass\n" + CHECK),
    "reads stdin": ("input()\ndef f(x): return x + 1", CHECK),
    "stdin is empty": ("import sys\nn = len(sys.stdin.read())\ndef f(x): return x + 1 + n", CHECK),
    "a helper the tests call": (
        "def g(x): return x * 2\ndef f(x): return x + 1",
        "def check(c):\n    assert g(c(1)) == 4\n",
    ),
    "shadows a builtin": ("def f(x): return x + 1\ndef abs(x): return 7", "def check(c):\n    assert abs(-1) == 7\n"),
    "tests import": ("def f(x): return x + 1", "import math\ndef check(c):\n    assert math.sqrt(4) == c(1)\n"),
    "dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef f(x): return P(x + 1).x",
        CHECK,
    ),
    "namedtuple": ("from collections import namedtuple\nP = namedtuple('P', 'x')\ndef f(x): return P(x + 1).x", CHECK),
    "enum": ("import enum\nE = enum.Enum('E', 'a b')\ndef f(x): return E.b.value", CHECK),
    "pickles its own class": (
        "import pickle\nclass P: x = 2\ndef f(x): return pickle.loads(pickle.dumps(P())).x",
        CHECK,
    ),
    "typing": (
        "from typing import *\nclass N(NamedTuple):\n    x: int\ndef f(x: Any) -> Optional[int]: return N(x + 1).x",
        CHECK,
    ),
    "threads": (
        "from concurrent.futures import *\nr = ThreadPoolExecutor(2).submit(len, 'ab').result()\ndef f(x): return r",
        CHECK,
    ),
    "asyncio": ("import asyncio\nasync def g(x): return x + 1\ndef f(x): return asyncio.run(g(x))", CHECK),
    "alarm": (
        "import signal\nsignal.signal(signal.SIGALRM, lambda *_: None)\nsignal.alarm(100)\ndef f(x): return x + 1",
        CHECK,
    ),
    "regular expressions": ("import re\ndef f(x): return len(re.findall('a', 'aa'))", CHECK),
    "decimal": ("from decimal import Decimal\ndef f(x): return int(Decimal(x) + 1)", CHECK),
    "too deep": ("def f(x): return f(x)", CHECK),
    "an inner name of the harness": ("report = nonces = texts = payload = None\ndef f(x): return x + 1", CHECK),
    "latin-1 cookie": ("# -*- coding: latin-1 -*-\ns = 'é'\ndef f(x): return len(s)", CHECK),
    "windows lines": ("def f(x):\r\n    return x + 1\r\n", CHECK),
    "form feeds": ("\fdef f(x):\n    return x + 1\n", CHECK),
    "unicode": ("größe = 1\ndef f(x): return x + größe", CHECK),
    "prints much": ("def f(x):\n    print('x' * 300000)\n    return x + 1", CHECK),
    "open quote": ("def f(x): return x + 1\n'''", CHECK),
    "open bracket": ("def f(x): return x + 1\n(", CHECK),
    "no check": ("def f(x): return x + 1", "assert f(1) == 2"),
    "exception with odd text": (
        "class E(Exception):\n    def __str__(self): raise ValueError\ndef f(x): raise E",
        CHECK,
    ),
    "sees its file": ("import os\nassert os.path.basename(__file__).endswith('.py')\ndef f(x): return x + 1", CHECK),
    "inspects": ("import inspect\ndef f(x): return 1 + len(inspect.signature(f).parameters)", CHECK),
}


def as_a_script(params: CodeAsserts, home: Path) -> tuple[str, str | None]:
    """Verdict and exception name as the recorded data has them."""
    (home / "program.py").write_text(f"{params.code}\n{asserts_of(params)}\n", encoding="utf-8", newline="")
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "program.py"],
        cwd=home,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=30,
        check=False,
    )
    if done.returncode == 0:
        return "passed", None
    last = done.stderr.decode().strip().splitlines()[-1]
    exception = last.partition(":")[0].split()[0].rpartition(".")[2]
    return ("failed" if exception in ("AssertionError", "Odd") else "error"), exception


def verdict_and_exception(verdict: Verdict) -> tuple[str, str | None]:
    return verdict.output["verdict"], verdict.output.get("exception")


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_gets_the_verdict_it_has_as_a_script(sandbox: Sandbox, tmp_path: Path, name: str) -> None:
    code, tests = PROGRAMS[name]
    params = CodeAsserts(code=code, tests=tests, entry_point="f" if "def check" in tests else None, timeout_s=20)
    verdict = await CodeAssertsGrader().grade(params, context(sandbox))
    assert verdict_and_exception(verdict) == as_a_script(params, tmp_path)
    assert verdict.passed is (verdict.output["verdict"] == "passed")


DEPTH = """
import json
def depth(n):
    try:
        return depth(n + 1)
    except RecursionError:
        return n
print(json.dumps(depth(0)))
"""


@pytest.fixture(scope="module")
def deepest() -> int:
    script = subprocess.run([sys.executable, "-c", DEPTH], capture_output=True, check=True, timeout=30)
    depth: int = json.loads(script.stdout)
    return depth


async def test_a_program_may_recurse_about_as_deep_as_a_script(sandbox: Sandbox, deepest: int) -> None:
    just_fits = f"def f(n): return 0 if n == 0 else 1 + f(n - 1)\nassert f({deepest - 20}) == {deepest - 20}\n"
    too_deep = f"def f(n): return 0 if n == 0 else 1 + f(n - 1)\nassert f({deepest + 20})\n"
    grader = CodeAssertsGrader()
    fits = await grader.grade(CodeAsserts(code=just_fits, tests="pass"), context(sandbox))
    breaks = await grader.grade(CodeAsserts(code=too_deep, tests="pass"), context(sandbox))
    assert fits.passed, fits
    assert breaks.output["exception"] == "RecursionError"


@pytest.mark.parametrize(
    ("tests", "reported"),
    [
        ("assert f(1) ==", "SyntaxError"),
        ("def h(a, a): pass\nassert f(1)", "SyntaxError"),
        ("assert f(x=1, x=2) == 2", "SyntaxError"),
        ("def h():\n    break\nassert f(1)", "SyntaxError"),
        ("", "no statement"),
        ("# assert f(1) == 2\n", "no statement"),
    ],
)
@pytest.mark.parametrize("code", ["def f(x): return 2", "import os\nos._exit(0)", "syntax error"])
async def test_broken_tests_are_the_trainers_fault(sandbox: Sandbox, code: str, tests: str, reported: str) -> None:
    verdict = await CodeAssertsGrader().grade(CodeAsserts(code=code, tests=tests), context(sandbox))
    assert (verdict.status, verdict.passed, verdict.score) == ("refused", None, None)
    assert reported in verdict.reason


@pytest.mark.parametrize(
    "code",
    [
        "from __future__ import barry_as_FLUFL\ndef f(x): return 0",
        (
            'import os\nfor d in range(3, 900):\n    try: os.write(d, b\'{"fault": "SyntaxError"}\')\n'
            "    except OSError: pass\nos._exit(0)"
        ),
    ],
    ids=["a future that the tests cannot have", "a claim of its own"],
)
async def test_no_program_makes_its_tests_the_trainers_fault(sandbox: Sandbox, code: str) -> None:
    tests = "import random\nassert f(1) != 0 != random"
    verdict = await CodeAssertsGrader().grade(CodeAsserts(code=code, tests=tests), context(sandbox))
    assert (verdict.status, verdict.passed, verdict.evidence) == ("ok", False, "in-process"), verdict


@pytest.mark.parametrize("leave", ["import sys\nsys.exit()", "exit()", "raise SystemExit(0)"])
async def test_leaving_early_is_no_pass_though_a_script_would_end_normally(sandbox: Sandbox, leave: str) -> None:
    verdict = await CodeAssertsGrader().grade(CodeAsserts(code=textwrap.dedent(leave), tests="pass"), context(sandbox))
    assert (verdict.passed, verdict.output["exception"]) == (False, "SystemExit")


async def test_a_program_that_leaves_a_thread_running_has_passed(sandbox: Sandbox) -> None:
    code = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()"
    verdict = await CodeAssertsGrader().grade(CodeAsserts(code=code, tests="assert True"), context(sandbox))
    assert verdict.passed, verdict


async def test_the_traceback_shows_the_program_and_not_the_harness(sandbox: Sandbox) -> None:
    params = CodeAsserts(code="def f(x):\n    return x.nothing\n", tests="f(1)")
    verdict = await CodeAssertsGrader().grade(params, context(sandbox))
    shown = verdict.output["traceback_tail"]
    assert 'File "main.py", line 2, in f' in shown
    assert "return x.nothing" in shown
    assert "harness" not in shown


@pytest.mark.parametrize(
    ("ended_by", "status", "passed", "reported"),
    [
        ("lost", "lost", None, {}),
        ("wall-limit", "timeout", False, {"error_class": "TimeLimitExceeded", "verdict": "timeout"}),
        ("memory-limit", "ok", False, {"error_class": "MemoryLimitExceeded", "verdict": "error"}),
    ],
)
async def test_limits_and_losses_are_distinguished(
    ended_by: EndedBy, status: str, passed: bool | None, reported: dict[str, str]
) -> None:
    sandbox = FakeSandbox(lambda job: Exit(ended_by=ended_by))
    verdict = await CodeAssertsGrader().grade(CodeAsserts(code="", tests="pass"), context(sandbox))
    assert (verdict.status, verdict.passed, verdict.output) == (status, passed, reported)


async def test_a_crash_is_an_error_with_its_signal() -> None:
    sandbox = FakeSandbox(lambda job: Exit(ended_by="signal", signal=11))
    verdict = await CodeAssertsGrader().grade(CodeAsserts(code="", tests="pass"), context(sandbox))
    assert (verdict.passed, verdict.output["error_class"]) == (False, "KilledBySignal")
    assert "signal 11" in verdict.reason


async def test_a_lost_sandbox_is_lost_even_when_a_report_came() -> None:
    def passing_but_lost(job: object) -> Exit:
        assert isinstance(job, PythonJob)
        return Exit(ended_by="lost", report=job.payload[:32] + b"{}")

    verdict = await CodeAssertsGrader().grade(
        CodeAsserts(code="", tests="pass"), context(FakeSandbox(passing_but_lost))
    )
    assert (verdict.status, verdict.score) == ("lost", None)


async def test_limits_are_capped_by_the_stage_and_grow_with_cores() -> None:
    sandbox = FakeSandbox(lambda job: Exit(ended_by="lost"))
    params = CodeAsserts(code="", tests="", timeout_s=60, memory_mb=64)
    await CodeAssertsGrader().grade(params, context(sandbox, timeout_s=2.0, cores=2))
    limits = sandbox.jobs[0].limits
    assert (limits.wall_s, limits.memory_bytes) == (2.0, 64 << 20)
    assert limits.cpu_s >= 4.0
