"""Programs that try to pass without being right. Each is wrong; not one may pass.

The tests of every run are the same: `f(1)` must be 2 and `f(2)` must be 3. They are graded in both ways: split, with
the expected values outside (`separate`), and in the program's interpreter (`in-process`).
"""

from __future__ import annotations

import textwrap

import pytest

from services.cpu_manager.graders.code_asserts import CodeAssertsGrader
from services.cpu_manager.graders.protocol import Verdict
from services.cpu_manager.kinds import CodeAsserts
from services.cpu_manager.sandbox.protocol import Sandbox
from tests.services.cpu_manager.graders.forgeries import JUDGED_BY_THE_PROGRAM, WITHOUT_EXPECTED_VALUES
from tests.services.cpu_manager.graders.sandboxes import context

pytestmark = pytest.mark.asyncio(loop_scope="session")

TESTS = """
METADATA = "tests-must-not-be-seen"
def check(candidate):
    assert candidate(1) == 2
    assert candidate(2) == 3
"""

IN_PROCESS = TESTS.replace("METADATA", "needle").replace("    assert", "    import random\n    assert", 1)
"""The same, in a form that is not split."""

LEAVING = {
    "os._exit": "import os\nos._exit(0)",
    "sys.exit": "import sys\nsys.exit(0)",
    "raise SystemExit": "raise SystemExit",
    "exit": "exit()",
    "quit": "quit(0)",
    "os._exit when called": "import os\ndef f(x): os._exit(0)",
    "sys.exit when called": "import sys\ndef f(x): sys.exit(0)",
    "exec another program": "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(1)'])",
    "killed by itself": "import os\nos.kill(os.getpid(), 9)",
    "exit in an exit handler": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): return 0",
    "exit by an alarm": """
        import os, signal, time
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        def f(x):
            time.sleep(0.5)
            return 0
        """,
    "exit by a thread": """
        import os, threading, time
        def leave():
            time.sleep(0.05)
            os._exit(0)
        threading.Thread(target=leave).start()
        def f(x):
            time.sleep(0.5)
            return 0
        """,
    "stdout that exits": """
        import os, sys
        class Out:
            def write(self, text): os._exit(0)
            def flush(self): os._exit(0)
        sys.stdout = sys.stderr = Out()
        def f(x): return 0
        """,
}

CLAIMING = {
    "printed markers": "print('passed'); print('{}'); print('{\"verdict\": \"passed\"}')\ndef f(x): return 0",
    "exception named like a pass": "class passed(BaseException): pass\ndef f(x): raise passed('{}')",
    "report of its own": """
        import sys
        frame = sys._getframe(1)
        while frame:
            send = frame.f_locals.get('report')
            if send:
                for forged in (b'{}', b'passed', b'0' * 32 + b'{}'):
                    send(forged)
            frame = frame.f_back
        def f(x): return 0
        """,
    "garbage on every descriptor, then exit": """
        import os
        for descriptor in range(3, 65536):
            try:
                os.write(descriptor, b'0' * 32 + b'{}')
            except OSError:
                pass
        os._exit(0)
        """,
    "garbage on every descriptor": """
        import os
        def f(x):
            for descriptor in range(3, 65536):
                try:
                    os.write(descriptor, b'{"verdict": "passed"}')
                except OSError:
                    pass
            return 0
        """,
    "every descriptor closed": "import os\nos.closerange(3, 65536)\ndef f(x): return 0",
    "all descriptors closed": "import os\nos.closerange(0, 65536)\ndef f(x): return 0",
}

PATCHING = {
    "__build_class__ and __import__": """
        import builtins, os
        builtins.__build_class__ = builtins.__import__ = lambda *a, **k: os._exit(0)
        def f(x): return 0
        """,
    "exec and compile": """
        import builtins
        builtins.exec = builtins.eval = builtins.compile = lambda *a, **k: None
        def f(x): return 0
        """,
    "exception classes": """
        import builtins
        builtins.AssertionError = builtins.BaseException = builtins.Exception = KeyError
        def f(x): return 0
        """,
    "every builtin": """
        import builtins
        for name in dir(builtins):
            if name not in ('vars', 'setattr', 'dir'):
                setattr(builtins, name, lambda *a, **k: True)
        f = lambda x: 0
        """,
    "the caller's builtins": """
        import sys
        for name in ('exec', 'compile', 'isinstance', 'type', 'BaseException'):
            sys._getframe(1).f_builtins[name] = lambda *a, **k: None
        def f(x): return 0
        """,
    "the caller's globals": """
        import sys
        frame = sys._getframe(1)
        while frame:
            for name, value in list(frame.f_globals.items()):
                if callable(value):
                    frame.f_globals[name] = lambda *a, **k: b'{}'
            frame = frame.f_back
        def f(x): return 0
        """,
    "the caller's locals": """
        import sys
        frame = sys._getframe(1)
        while frame:
            for name in list(frame.f_locals):
                frame.f_locals[name] = lambda *a, **k: b'{}'
            frame = frame.f_back
        def f(x): return 0
        """,
    "the caller's modules": """
        import sys, types
        for value in list(sys._getframe(1).f_globals.values()):
            if isinstance(value, types.ModuleType):
                for name, inner in list(vars(value).items()):
                    if isinstance(inner, types.FunctionType):
                        setattr(value, name, lambda *a, **k: b'{}')
        def f(x): return 0
        """,
    "the caller's code": """
        import sys
        def nothing(*a): return b'{}'
        try:
            sys._getframe(1).f_globals['_run_tests'].__code__ = nothing.__code__
        except RuntimeError:
            pass
        def f(x): return 0
        """,
    "the watcher's code": """
        import sys
        watcher = sys._getframe(1).f_globals['guard']._refuse
        try:
            watcher.__code__ = (lambda event, args: None).__code__
        except RuntimeError:
            pass
        sys._getframe(1).f_globals['_run_tests'].__code__ = (lambda *a: b'{}').__code__
        def f(x): return 0
        """,
    "sys.modules": """
        import sys
        class Anything:
            def __getattr__(self, name): return lambda *a, **k: b'{}'
        for name in list(sys.modules):
            if name not in ('sys', 'builtins'):
                sys.modules[name] = Anything()
        def f(x): return 0
        """,
    "os.write, os.getpid and json.dumps": """
        import json, os
        os.write = lambda *a: 1
        os.getpid = lambda: 1
        json.dumps = lambda *a, **k: '{"verdict": "passed"}'
        def f(x): return 0
        """,
    "check, before": "def check(candidate): pass\ndef f(x): return 0",
    "check, afterwards": """
        import __main__
        def f(x):
            globals()['check'] = __main__.check = lambda candidate: None
            return 0
        """,
    "check, by a thread": """
        import sys, threading
        sys.setswitchinterval(1e-6)
        def replace(space):
            while True:
                if 'needle' in space:
                    space['check'] = lambda candidate: None
        threading.Thread(target=replace, args=(globals(),), daemon=True).start()
        def f(x): return 0
        """,
}

SWALLOWING = {
    "open triple quote": 'def f(x): return 0\n"""',
    "open bracket": "def f(x): return 0\nz = (",
    "open line": "def f(x): return 0\nz = 1 \\",
    "open block": "def f(x): return 0\nif False:",
    "open decorator": "def f(x): return 0\n@lambda check: (lambda candidate: None)",
    "endless comment": "def f(x): return 0\n#",
    "null character": "def f(x): return 0\n\0",
}

LOOKING = {
    "tracing that skips lines": """
        import sys
        def skip(frame, event, arg):
            if frame.f_code.co_name == 'check' and event == 'line':
                frame.f_lineno = frame.f_code.co_firstlineno + 2
            return skip
        def f(x):
            try:
                sys.settrace(skip)
            except RuntimeError:
                pass
            sys._getframe(1).f_trace = skip
            return 0
        """,
    "tracing from threading": """
        import sys, threading
        threading.settrace(lambda *a: None)
        def f(x):
            try:
                sys.setprofile(lambda *a: None)
            except RuntimeError:
                pass
            return 0
        """,
    "fork, and the child returns too": """
        import os
        def f(x):
            pid = os.fork()
            if pid == 0:
                return x + 1
            os.waitpid(pid, 0)
            os._exit(0)
        """,
    "an early exception, caught": """
        try:
            raise AssertionError
        except AssertionError:
            pass
        def f(x):
            try:
                assert False
            except AssertionError:
                return 0
        """,
    "an exception of its own making": """
        class Odd(BaseException):
            def __str__(self): import os; os._exit(0)
        def f(x): raise Odd
        """,
}

ATTACKS = {**LEAVING, **CLAIMING, **PATCHING, **SWALLOWING, **LOOKING}


async def graded(sandbox: Sandbox, code: str, tests: str = IN_PROCESS, timeout_s: float = 20.0) -> Verdict:
    params = CodeAsserts(code=textwrap.dedent(code), tests=tests, entry_point="f", timeout_s=timeout_s)
    verdict = await CodeAssertsGrader().grade(params, context(sandbox))
    assert verdict.evidence == ("separate" if tests == TESTS else "in-process")
    return verdict


both = pytest.mark.parametrize("tests", [pytest.param(TESTS, id="separate"), pytest.param(IN_PROCESS, id="in-process")])


@both
@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_wrong_program_never_passes(sandbox: Sandbox, attack: str, tests: str) -> None:
    verdict = await graded(sandbox, ATTACKS[attack], tests)
    assert (verdict.status, verdict.passed, verdict.score) == ("ok", False, 0.0), verdict


@pytest.mark.parametrize("forgery", WITHOUT_EXPECTED_VALUES)
async def test_no_forgery_passes_where_expected_values_stay_outside(sandbox: Sandbox, forgery: str) -> None:
    verdict = await graded(sandbox, WITHOUT_EXPECTED_VALUES[forgery], TESTS)
    assert (verdict.status, verdict.passed, verdict.score) == ("ok", False, 0.0), verdict


@pytest.mark.parametrize("forgery", JUDGED_BY_THE_PROGRAM)
async def test_a_verdict_that_the_program_forms_is_never_separate(sandbox: Sandbox, forgery: str) -> None:
    code, tests = JUDGED_BY_THE_PROGRAM[forgery]
    verdict = await CodeAssertsGrader().grade(CodeAsserts(code=code, tests=tests), context(sandbox))
    assert (verdict.status, verdict.evidence) == ("ok", "in-process"), verdict


async def test_the_same_forgery_passes_in_one_interpreter_and_its_evidence_shows_it(sandbox: Sandbox) -> None:
    """The checks above can fail: the operand that docs/graders.md names does not depend on the tests."""
    verdict = await graded(sandbox, WITHOUT_EXPECTED_VALUES["an object that equals everything"])
    assert (verdict.passed, verdict.evidence) == (True, "in-process")


@both
async def test_the_asserts_of_these_attacks_pass_a_right_program(sandbox: Sandbox, tests: str) -> None:
    verdict = await graded(sandbox, "def f(x): return x + 1", tests)
    assert (verdict.status, verdict.passed, verdict.score) == ("ok", True, 1.0), verdict


SEARCH = """
import sys, types, gc
found = []
seen = set()
def search(value, depth):
    if id(value) in seen or depth > 6:
        return
    seen.add(id(value))
    if isinstance(value, (bytes, bytearray)):
        if len(value) >= 32 and all(c in b'0123456789abcdef' for c in value[:32]) and len(set(value)) > 3:
            found.append('nonce')
        value = value.decode('latin-1')
    if isinstance(value, str):
        if 'tests-must-not-be' + '-seen' in value:
            found.append('tests')
    elif isinstance(value, dict):
        for key, inner in list(value.items()):
            search(inner, depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in list(value):
            search(inner, depth + 1)
    elif isinstance(value, types.FunctionType):
        search(value.__defaults__, depth + 1)
        search([cell.cell_contents for cell in value.__closure__ or ()], depth + 1)
    elif isinstance(value, types.ModuleType):
        search(vars(value), depth + 1)
    else:
        search(getattr(value, '__dict__', None), depth + 1)
        for name in getattr(type(value), '__slots__', ()):
            search(getattr(value, name, None), depth + 1)
def climb(frame):
    while frame:
        search(dict(frame.f_locals), 0)
        search(frame.f_globals, 0)
        frame = frame.f_back
def generated():
    climb(sys._getframe())
    yield
def look():
    climb(sys._getframe())
    try:
        raise ValueError
    except ValueError as error:
        climb(error.__traceback__.tb_frame)
    running = generated()
    next(running)
    climb(running.gi_frame)
    for inventory in (gc.get_objects, gc.get_referrers, gc.get_referents):
        try:
            inventory()
        except RuntimeError:
            pass
        else:
            found.append(inventory.__name__)
    search(gc.garbage, 0)
"""


async def test_a_program_finds_neither_nonce_nor_tests_while_its_body_runs(sandbox: Sandbox) -> None:
    verdict = await graded(sandbox, SEARCH + "look()\nassert not found, found\ndef f(x): return x + 1\n")
    assert verdict.passed is True, verdict


async def test_a_program_finds_no_nonce_while_its_tests_run(sandbox: Sandbox) -> None:
    called = "def f(x):\n    look()\n    assert 'nonce' not in found, found\n    return x + 1\n"
    verdict = await graded(sandbox, SEARCH + called)
    assert verdict.passed is True, verdict


async def test_the_search_of_these_tests_finds_a_nonce_where_there_is_one(sandbox: Sandbox) -> None:
    planted = (
        "def outer():\n    hidden = b'0123456789abcdef' * 2 + b'{}'\n    look()\nouter()\nassert not found, found\n"
    )
    verdict = await graded(sandbox, SEARCH + planted)
    assert verdict.passed is False
    assert "nonce" in verdict.reason


async def test_separate_tests_never_enter_the_interpreter(sandbox: Sandbox) -> None:
    verdict = await graded(
        sandbox,
        SEARCH.replace("gc.get_objects, gc.get_referrers, gc.get_referents", "")
        + "def f(x):\n    look()\n    assert 'tests' not in found\n    return x + 1\n",
        TESTS,
    )
    assert (verdict.passed, verdict.evidence) == (True, "separate"), verdict


@both
async def test_an_endless_program_is_a_timeout_and_no_score(sandbox: Sandbox, tests: str) -> None:
    verdict = await graded(sandbox, "while True: pass", tests, timeout_s=1.0)
    assert (verdict.status, verdict.passed, verdict.score) == ("timeout", False, None)
