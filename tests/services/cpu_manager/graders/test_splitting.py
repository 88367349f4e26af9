"""Texts of tests in two parts: which are split, what enters the sandbox, and what the comparison outside means."""

from __future__ import annotations

import json
import math
import random
import sys
from typing import Any

import pytest

from services.cpu_manager.graders.code_asserts import CodeAssertsGrader
from services.cpu_manager.graders.splitting.judging import Finding, Judge
from services.cpu_manager.graders.splitting.packing import unpacked
from services.cpu_manager.graders.splitting.plan import MOST_STEPS, Sent, SplitPlan
from services.cpu_manager.graders.splitting.reading import MOST_CHARS, MOST_PLANS, PlanCache, split
from services.cpu_manager.graders.splitting.values import MOST_DEPTH, NotPlainError
from services.cpu_manager.kinds import CodeAsserts
from services.cpu_manager.sandbox.harnesses.calls import _plain
from services.cpu_manager.sandbox.protocol import Exit, PythonJob
from tests.services.cpu_manager.graders.sandboxes import FakeSandbox, context

SPLIT = [
    "assert f(1) == 2",
    "assert f(1) != 2, 'message'",
    "assert f(1)",
    "assert not f(1)",
    "assert f(1) is None",
    "assert f(1) is True and f(2) is False",
    "assert f(1) in (1, 2)",
    "assert 1 < f(1) <= 3",
    "assert abs(f(1) - 0.5) < 1e-6",
    "assert round(f(1), 2) == 0.5",
    "assert tuple(f([1])) == (1,)",
    "assert sorted(f([1])) == sorted([2, 1])",
    "assert len(set(f([1]))) == 1",
    "assert isinstance(f(1), (int, float))",
    "import math\nassert math.isclose(f(1), math.sqrt(2), abs_tol=1e-6)",
    "from math import isclose\nassert isclose(f(1), 2)",
    "assert f(1)[0]['a'][1:] == [2]",
    "assert f('a').strip().lower() == 'b'",
    "assert Solution().solve([1]) == 2",
    "def check(candidate):\n    for x, y in [(1, 2), (2, 3)]:\n        assert candidate(x) == y\ncheck(f)",
    "def check(c):\n    wanted = [1, 2]\n    r = c(3)\n    assert len(r) == 2\n    assert r == wanted\ncheck(f)",
    "def check(c):\n    import math\n    assert c(3) == math.pi / 2\ncheck(f)",
    "assert all(f(x) == x for x in range(3))",
    "assert all(f(x) == y for x, y in [(1, 2), (2, 3)])",
    "assert int(f(5), 2) == 5",
    "assert round(f(5), ndigits=2) == 0.5",
    "assert sorted(f([1]), reverse=True) == [1]",
    "assert f(1).name == 'a'",
    "assert f(x=1) == 3, 'a' 'b'",
    "assert [f(x) for x in range(3)] == list(range(3))",
    "METADATA = {'author': 'a'}\n\ndef check(candidate):\n    'doc'\n    assert candidate(1) == 2\ncheck(f)",
    "def check(candidate):\n    r = candidate([1])\n    assert r == [1]\n    assert True\ncheck(f)",
    "assert f(10**20, -1, [0] * 3, {'a': (1,)}, b'x', 1j) == -(2 ** 70)",
    "assert f(1) == 2, f'got {f(1)}'",
    "assert f(1) == 2, 'got ' + str(f(1))",
]
NOT_SPLIT = {
    "syntax error": "assert f(1) ==",
    "nothing to compare": "assert True",
    "empty": "",
    "random values": "import random\nassert f(random.random()) == 1",
    "an exception is expected": "try:\n    f(1)\nexcept ValueError:\n    pass\nassert f(2) == 1",
    "a function as an argument": "assert f(lambda x: x) == 1",
    "an argument read again": "a = [1]\nf(a)\nassert a == [1]",
    "an argument read again, in a list": "a = [[1]]\nf(a[0])\nassert f(2) == a",
    "one list twice": "a = [1]\nassert f(a, a) == 1",
    "aliased rows": "assert f([[0]] * 2) == 1",
    "an object that may have changed": "r = f(1)\ng(r)\nassert r == 1",
    "a call that may be left out": "assert f(1) or f(2)",
    "a comparison that may be left out": "assert 1 < 2 < f(1) < f(2)",
    "a builtin's name alone": "assert sum(1, 2) == 3",
    "a builtin as a value": "assert f(len) == 3",
    "a method of plain data": "assert f(1).append(2) is None",
    "a private attribute": "assert f.__name__ == 'f'",
    "identity of a number": "assert f(1) is 2",
    "too many rounds": "for i in range(10**9):\n    assert f(i) == i",
    "an endless loop": "while True:\n    assert f(1) == 1",
    "a number too large": "assert f(10 ** 10 ** 10) == 1",
    "a text too large": "assert f('a' * 10**12) == 1",
    "a power of powers": "assert f(2 ** 60000 ** 2) == 1",
    "a shift too far": "assert f(1 << 10**12) == 1",
    "a message that may raise": "assert f(1) == 2, 'got ' + str(len(f(1)))",
    "a decorated check": "@g\ndef check(c):\n    assert c(1) == 2\ncheck(f)",
    "recursion": "def check(c):\n    assert c(1) == 2\n    check(c)\ncheck(f)",
    "star import": "from solution import *\nassert f(1) == 2",
    "formats": "assert f('%1000000000d' % 1) == 2",
    "unhashable": "assert f({[1]: 2}) == 1",
    "doubled lists": "x = [1]\nfor i in range(60):\n    x = [x, x]\nassert f(1) == x",
    "doubled tuples": "x = (1,)\nfor i in range(60):\n    x = (x, x)\nassert f(x) == 1",
    "doubled results": "x = f(1)\nfor i in range(60):\n    x = [x, x]\nassert x == 1",
    "many large lists": "for i in range(10000):\n    x = sorted([0] * 100000)\nassert f(1) == 1",
    "a sum of lists": "assert f(sum([[1]] * 100000, [])) == 1",
    "a range as an argument": "assert f(range(3)) == 1",
    "a result as an argument": "assert f(g(1)) == 2",
    "a loop that binds names of the module": "for x, y in [(1, 2), (2, 3)]:\n    assert f(x) == y",
    "a result that binds a name of the module": "r = f(1)\nassert r == 1",
    "a constant of the module": "N = 3\nassert f(1) == N",
    "a function of the tests": "def same(a, b):\n    return a == b\nassert same(f(1), 2)",
    "another import": "import numpy as np\nassert f(1) == 1",
    "two results": "assert f(1) == g(1)",
    "a call after an operation": "assert [abs(f(1) - 2), f(2)] == [0, 1]",
    "an operation that nothing asks for": "abs(f(1) - 2)\nassert f(2) == 1",
    "the program's module": "assert math.isclose(f(90), 1.5708)",
    "the program's function judges": "assert isclose(f(90), 1.5708)",
    "the program's class judges": "assert f('aab') == Counter({'a': 2, 'b': 1})",
    "the program's method judges": "assert f().startswith('ab')",
    "the program's container judges": "assert 'b' in f('abc')",
    "identity of nan": "assert f(1) == float('nan')",
    "identity of nan in a module": "import math\nassert f(1) == [math.nan]",
    "not a number": "assert f(1) == 1e400 - 1e400",
    "a set of results": "assert f(1) in {1, 2}",
    "the order of a set": "assert f({1, 2}) == 1",
    "order of sets": "assert f(1) <= {1, 2}",
    "or": "assert f(1) == 1 or f(1) == 2",
    "check called twice": "def check(c):\n    assert c(1) == 2\ncheck(f)\ncheck(f)",
    "check never called": "def check(c):\n    assert c(1) == 2\nassert f(1) == 2",
    "check that yields": "def check(c):\n    for x in []:\n        yield\n    assert c(1) == 2\ncheck(f)",
    "nested finally": "try:\n    pass\nfinally:\n    assert f(1) == 2",
    "deep": "assert f(" + "[" * 150 + "]" * 150 + ") == 1",
    "long": "assert f(1) == 2\n" * (MOST_CHARS // 17 + 1),
}


@pytest.mark.parametrize("text", SPLIT)
def test_these_forms_are_split(text: str) -> None:
    assert split(text) is not None


@pytest.mark.parametrize("name", NOT_SPLIT)
def test_these_forms_are_not_split(name: str) -> None:
    assert split(NOT_SPLIT[name]) is None  # unbounded, some of them would take days


def test_expected_values_do_not_enter_the_sandbox() -> None:
    text = """
METADATA = {"secret-0": 1}
assert all(f(x) == y for x, y in [(1, "secret-1"), (2, "secret-2")]), "secret-3"
assert f(3) in ("secret-4", "secret-5")
assert abs(f("given") - 7654321) < 1e-6
def check(candidate):
    wanted = "secret-6"
    assert candidate("also given")["key"] == {wanted}
check(f)
"""
    plan = split(text)
    assert plan is not None
    assert (b"given" in plan.payload, b"also given" in plan.payload) == (True, True)
    assert b"secret" not in plan.payload
    assert (7654321).to_bytes(4, "little") not in plan.payload


def report_of(*results: Any) -> bytes:
    """Report of the harness for these results of calls `f(...)`; a call is every second register."""
    lines = [f"[{2 * place + 1},{json.dumps(_plain(result, 0))}]" for place, result in enumerate(results)]
    return "\n".join([*lines, "[]", ""]).encode()


def judged(text: str, *results: Any) -> Finding:
    plan = split(text)
    assert isinstance(plan, SplitPlan)
    return Judge(plan).take(report_of(*results))


def random_value(chance: random.Random, depth: int = 0) -> Any:
    scalars = [None, True, False, 0, 1, -1, 2, 10**20, 0.0, -0.0, 1.0, 0.5, 1e300, "", "a", "1", b"", b"a", 1j, 1 + 0j]
    kind = chance.randrange(9 if depth < 3 else 4)
    if kind < 4:
        return chance.choice(scalars)
    parts = [random_value(chance, depth + 1) for _ in range(chance.randrange(3))]
    if kind == 4:
        return parts
    if kind == 5:
        return tuple(parts)
    try:
        return {6: set, 7: frozenset}[kind](parts) if kind < 8 else dict.fromkeys(parts, parts[-1] if parts else 0)
    except TypeError:
        return tuple(parts)


def same_shape(value: Any, chance: random.Random) -> Any:
    """The value in other words: other numeric types, other kinds of containers here and there."""
    if type(value) in (int, bool) and abs(value) < 1000 and chance.random() < 0.5:
        return chance.choice([float, complex, int])(value)
    if type(value) is list:
        return [same_shape(part, chance) for part in value]
    if type(value) is tuple and chance.random() < 0.9:
        return tuple(same_shape(part, chance) for part in value)
    if type(value) in (set, frozenset):
        return chance.choice([set, frozenset])(value)
    if type(value) is dict:
        return {key: same_shape(inner, chance) for key, inner in reversed(value.items())}
    return value


def test_equality_outside_is_pythons_own() -> None:
    chance = random.Random(20_261_122)
    equal = 0
    for _ in range(4000):
        one = random_value(chance)
        other = same_shape(one, chance) if chance.random() < 0.6 else random_value(chance)
        node, its = json.loads(json.dumps(_plain(one, 0))), json.loads(json.dumps(_plain(other, 0)))
        assert (unpacked(node) == unpacked(its)) is (one == other), (one, other)
        assert (unpacked(node) != unpacked(its)) is (one != other), (one, other)
        equal += one == other
    assert 1000 < equal < 3000


def test_a_nan_equals_nothing() -> None:
    assert unpacked(_plain(math.nan, 0)) != unpacked(_plain(math.nan, 0))
    assert unpacked(_plain({math.nan}, 0)) != unpacked(_plain({math.nan}, 0))


def test_the_first_deviation_decides_and_nothing_after_it_is_read() -> None:
    text = "assert f(1) == 1\nassert f(2) == 2\nassert f(3) == 3"
    assert judged(text, 1, 2, 3).decided == "passed"
    assert judged(text, 1, 5).decided == "failed"
    assert judged(text, 1).decided == "error"  # the end came before the results
    plan = split(text)
    assert plan is not None
    judge = Judge(plan)
    assert judge.take(report_of(1)[:-4]).decided == "undecided"
    assert judge.take(b"\n[3,7]\n[5,3]\n[]\n").decided == "failed"
    assert judge.take(report_of(1, 2, 3)).decided == "failed"


@pytest.mark.parametrize(
    ("text", "result", "exception"),
    [
        ("assert abs(f(1) - 2) < 1", None, "TypeError"),
        ("assert f(1) < 2", "a", "TypeError"),
        ("assert f(1) < 2", object(), "TypeError"),
        ("assert f(1) - 2 < 1", {1}, "TypeError"),
        ("assert f(1) <= [1]", {1: 2}, "TypeError"),
        ("assert f(1) / 3 < 1", 1 << 2_000, "OverflowError"),
    ],
)
def test_an_operation_that_python_refuses_is_an_error_with_its_name(text: str, result: Any, exception: str) -> None:
    found = judged(text, result)
    assert (found.decided, found.exception) == ("error", exception)


HOSTILE = {
    "nothing": b"\n\n\n",
    "no json": b"passed\n",
    "not text": b"\xff\xfe\n",
    "another register": b"[3,1]\n",
    "a register that is no number": b'["1",1]\n[true,1]\n',
    "too many parts": b"[1,1,1]\n",
    "the end at once": b"[]\n",
    "an unknown tag": b'[1,{"x":1}]\n',
    "two tags": b'[1,{"t":[],"s":[]}]\n',
    "a tag without its list": b'[1,{"t":1}]\n',
    "a dict of one": b'[1,{"d":[[1]]}]\n',
    "an unhashable key": b'[1,{"d":[[[1],1]]}]\n',
    "a float of another name": b'[1,{"f":"1e5"}]\n',
    "deep lists": b"[1," + b"[" * 100_000 + b"]" * 100_000 + b"]\n",
    "deep tuples": b"[1," + b'{"t":[' * 5000 + b"]}" * 5000 + b"]\n",
    "a long number": b"[1," + b"9" * 100_000 + b"]\n",
    "a long exponent": b"[1,1e999999999]\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_report_of_the_programs_own_making_never_passes(name: str) -> None:
    plan = split("assert f(1) == 2")
    assert plan is not None
    found = Judge(plan).take(HOSTILE[name] + report_of(2))
    assert found.decided in ("failed", "error"), found


def test_colliding_integers_are_not_hashed_as_integers() -> None:
    """In a Python set these 30,000 take 3 to 10 s, and twice as many four times as long. Bytes have a random hash."""
    nodes = [{"i": hex(i * (2**61 - 1))} for i in range(1, 30_001)]
    members, entries = unpacked({"s": nodes}), unpacked({"d": [[node, 0] for node in nodes]})
    assert (len(members), len(entries)) == (30_000, 30_000)
    assert {type(key) for key in (*members.members, *entries.entries)} == {bytes}
    assert members == unpacked({"z": nodes[::-1]})


def test_values_nested_beyond_the_bound_are_not_read() -> None:
    node: Any = 1
    for _ in range(MOST_DEPTH + 2):
        node = {"t": [node]}
    with pytest.raises(NotPlainError):
        unpacked(node)


def test_an_operation_on_a_very_large_result_has_failed_with_a_reason() -> None:
    for text in ("assert abs(f(1) - 1) < 2", "import math\nassert math.isclose(f(1), 2)"):
        plan = split(text)
        assert plan is not None
        register = 1 + ("math" in text)
        found = Judge(plan).take(f'[{register},{{"i":"0x1{"0" * 20_000}"}}]\n[]\n'.encode())
        assert (found.decided, found.exception) == ("failed", "AssertionError")
        assert "bounds" in found.message


MANY = 1500
BOUNDED = {
    "a message of many sums": "assert f(1) == 2, " + "f'{f(1)}' + " * 400 + "'x'",
    "a large tuple in a loop": "def check(c):\n    x = (0,) * 9_000\n"
    f"    for i in range({MANY}):\n        c(x)\ncheck(f)",
    "one large list compared often": "def check(c):\n    x = [0] * 9_000\n    r = c(1)\n"
    f"    for i in range({MANY}):\n        assert r == x\ncheck(f)",
    "a doubled text": "def check(c):\n    x = 'aaaaaaaa'\n    for i in range(60):\n        x = x + x\n"
    "    assert c(x) == 1\ncheck(f)",
    "nested tuples": "def check(c):\n    x = (1, 2)\n    for i in range(40):\n        x = (x, x)\n"
    "    assert c(x) == 1\ncheck(f)",
    "a large set in a loop": "def check(c):\n    x = [0] * 10_000\n    for i in range(500):\n"
    "        y = set(x)\n    assert c(1) == 1\ncheck(f)",
    "imports": "import math\n" * 600 + "assert f(1) == 1",
    "large numbers": "def check(c):\n    x = 3\n"
    "    for i in range(5000):\n        x = x * x\n    assert c(x) == 1\ncheck(f)",
    "loops in loops": "def check(c):\n"
    "    for a in range(999):\n        for b in range(999):\n            c(1)\ncheck(f)",
}


WITHIN = {"a message of many sums", "imports"}
"""Cases of BOUNDED that are read to their end."""


@pytest.mark.parametrize("name", BOUNDED)
def test_reading_a_text_stays_within_its_steps(name: str) -> None:
    """The reader gives up at its bound, whatever the text multiplies. Every call of a function counts here."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        plan = split(BOUNDED[name])
    finally:
        sys.setprofile(None)
    assert (plan is not None) == (name in WITHIN)
    assert calls < 50 * MOST_STEPS


def test_what_was_sent_is_sent_once_until_the_next_call() -> None:
    plan = split("def check(c):\n    r = c(1)\n    for i in range(900):\n        assert r == 3\ncheck(f)")
    assert plan is not None
    assert sum(isinstance(event, Sent) for event in plan.events) == 1
    again = split("def check(c):\n    r = c(1)\n    assert r == [1]\n    s = c(2)\n    assert r == [1]\ncheck(f)")
    assert again is not None
    assert sum(isinstance(event, Sent) for event in again.events) == 2


async def test_plans_are_kept_within_a_bound() -> None:
    plans = PlanCache()
    first = await plans.get("assert f(0) == 0")
    assert await plans.get("assert f(0) == 0") is first
    for number in range(MOST_PLANS + 1):
        await plans.get(f"assert g({number}) == 0")
    assert await plans.get("assert f(0) == 0") is not first


async def test_the_text_alone_decides_the_evidence() -> None:
    """Whatever the program is: the job of a text that is split has no tests in it, the other one has."""
    jobs = FakeSandbox(lambda job: Exit(ended_by="exit", exit_code=0))
    for code in ("def f(x): return 2", "import random", "", "'unbalanced"):
        for tests, harness in (("assert f(1) == 2", "calls"), ("import random\nassert f(len) == 2", "asserts")):
            verdict = await CodeAssertsGrader().grade(CodeAsserts(code=code, tests=tests), context(jobs))
            job = jobs.jobs[-1]
            assert isinstance(job, PythonJob)
            assert (job.harness, verdict.evidence) == (
                harness,
                "separate" if harness == "calls" else "in-process",
            )
