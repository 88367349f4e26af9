"""The splitter against plain Python: the verdict of a split text is that of `exec(program); exec(tests)`.

Texts are random: an expression grows around calls of the program, Python computes its value, and an assertion compares
both, sometimes with another value. A text that is not split agrees, as it runs in Python. Left out are the documented
differences: results that change after their call returned, results that are no plain data, names of builtins in the
program, messages that show results. Also left out are a program that reads names which the tests bind, the identity of
NaN, and results beyond the bounds on size.

TREADLE_SPLITTER_CASES sets the number of random pairs.
"""

from __future__ import annotations

import builtins
import marshal
import math
import os
import random
import warnings
from typing import Any, Final

import pytest

from services.cpu_manager.graders.splitting.judging import Judge
from services.cpu_manager.graders.splitting.reading import split
from services.cpu_manager.sandbox.harnesses import calls, guard

CASES: Final = int(os.environ.get("TREADLE_SPLITTER_CASES", "3000"))
SEED: Final = 20_261_122
_MOST_CHARS: Final = 300
"""Length of a value in a random assertion, at most."""

Ended = tuple[str, str]
"""passed, failed or error, and the exception's name."""

SAME: Final = "def f(x=0, *a, **k): return x\ndef g(x=0, *a, **k): return x\n"
APPENDS: Final = "def f(x):\n    x.append(9)\n    return x\ndef g(x=0): return x\n"
PAIRS: Final[dict[str, tuple[str, str]]] = {
    "format of an integer": (SAME, "assert '%d' % f(3) == '3'"),
    "or stops": ("def f(x): return None", "r = f(1)\nassert r is None or r > 3"),
    "or stops in a helper": (SAME, "def same(a, b):\n    return a == b or abs(a - b) < 1\nassert same(f('a'), 'a')"),
    "a chain stops": (SAME, "r = f(0)\nassert not (r > 0 > 1 // r)"),
    "a method that raises, unused": ("def f(x): return 1", "s = f(1).lower()\nassert f(2) == 1"),
    "a frozenset is no set": ("def f(x): return frozenset([1])", "assert isinstance(f(1), set)"),
    "equal ranges": (SAME, "x = range(3)\ny = range(3)\nassert x == y\nassert f(1) == 1"),
    "an iterator is read once": (SAME, "z = zip([1], [1])\nfor a in z:\n    assert f(1)\nfor a in z:\n    assert f(0)"),
    "a generator as an argument": ("def f(x): return x[0]", "assert f(i for i in [1, 2]) == 1"),
    "a generator is true": (SAME, "q = (i for i in [])\nassert q\nassert f(1) == 1"),
    "a zip has no length": (SAME, "n = len(zip([1], [2]))\nassert f(1) == n"),
    "reversed results, counted": (SAME, "assert list(enumerate(reversed(f([5])))) == [(0, 5)]"),
    "the order of a set": (SAME, "assert f(list({3, 1, 2})) == [1, 2, 3]"),
    "the order of a set of results": (SAME, "assert list(f({3, 1}) | {0}) == [0, 1, 3]"),
    "sum of lists": (SAME, "assert sum(f([[1], [2]]), []) == [1, 2]"),
    "a set in a set": (SAME, "assert f({1}) in {frozenset([1]), 2}"),
    "split with a keyword": (SAME, "assert f('a,b').split(sep=',') == ['a', 'b']"),
    "an operand that the call changes": (APPENDS, "a = [1]\nassert a == f(a)"),
    "a part that the call changes": (APPENDS, "a = [1]\nassert [a, f(a)] == [[1], [1, 9]]"),
    "an argument kept beside a result": (APPENDS, "a = [1]\nt = (g(0), a)\nf(a)\nassert t == (0, [1])"),
    "a list that grows in its loop": (
        "def f(x):\n    if len(x) < 3: x.append(9)\n    return len(x)",
        "a = [1]\nfor q in a:\n    assert f(a) == q + 1",
    ),
    "a local name before its binding": (SAME, "x = 1\ndef check(c):\n    assert c(x) == 1\n    x = 2\ncheck(f)"),
    "a local name that is changed": (SAME, "n = 1\ndef check(c):\n    n += 1\n    assert c(n) == 2\ncheck(f)"),
    "a keyword twice": (SAME, "assert f(x=1, x=2) == 2"),
    "break in a function": (SAME, "def h():\n    break\nfor i in [1]:\n    h()\nassert f(1) == 1"),
    # correct programs whose texts were split in another meaning
    "a builtin with a second argument": (
        "def f(x): return '101'",
        "assert int(f(5), 2) == 5\nassert int(f(5), base=2) == 5",
    ),
    "a sum of lists": ("def f(x): return [[1], [2]]", "assert sum(f(1), []) == [1, 2]"),
    "digits by name": ("def f(x): return 2.345", "assert round(f(1), ndigits=2) == round(2.345, 2)"),
    "a method of the program's object": (
        "class T:\n    def lower(s): return 'b'\n    def split(s): return 7\ndef f(x): return T()",
        "assert f(1).lower() == 'b'\nassert f(1).split() == 7",
    ),
    "sets and operators": ("def f(x): return {1, 2}", "assert f(1) ^ {2} == {1}\nassert f(1) | {3} == {1, 2, 3}"),
    "dicts and operators": ("def f(x): return {1: 2}", "assert f(1) | {2: 3} == {1: 2, 2: 3}"),
    "a container of the program's own": (
        "class I:\n    def __contains__(s, x): return 1 < x < 10\ndef f(): return I()",
        "assert 5 in f()",
    ),
    "a generator without end": (
        "def f():\n    n = 0\n    while True:\n        n += 1\n        yield n",
        "assert 7 in f()",
    ),
    "an iterator asked twice": (
        "def f(): return iter([1, 2, 3])",
        "def check(c):\n    g = c()\n    assert 2 in g\n    assert list(g) == [3]\ncheck(f)",
    ),
    "an iterator read twice": (
        "def f(): return iter([1, 2, 3])",
        "def check(c):\n    g = c()\n    assert list(g) == [1, 2, 3]\n    assert list(g) == []\ncheck(f)",
    ),
    "a zip of a generator": ("def f(): return (i for i in [1])", "assert list(zip(f(), [1])) == [(1, 1)]"),
    "an enumerated generator": ("def f(): return (i for i in [5])", "assert list(enumerate(f())) == [(0, 5)]"),
    "max of a generator": (
        "def f(): return (i for i in [])",
        "assert max(f(), default=0) == 0\nassert sum(f(), 0) == 0",
    ),
    "zip that is strict": ("def f(): return [1]", "assert list(zip(f(), [1, 2], strict=True)) == []"),
    "a format with a tuple": ("def f(): return '%s'", "assert f() % 3 == '3'"),
    "a loop over a set": (SAME, "r = []\nfor i in {3, 1, 2}:\n    r.append(f(i))\nassert r == [1, 2, 3]"),
    "elements of a set": ("def f(*x): return list(x)", "assert f(*{3, 1, 2}) == [1, 2, 3]"),
    "a set as an argument": ("def f(x): return list(x)", "assert f({8, 1, 16}) == list({8, 1, 16})"),
    "a constant that the program reads": ("def f(): return N", "N = 3\nassert f() == 3"),
    "a function that the program calls": ("def f(): return h()", "def h():\n    return 3\nassert f() == 3"),
    "a name of the program that is replaced": ("L = 1\ndef f(): return L", "L = 5\nassert f() == 5"),
    "a loop that replaces a name": ("n = 7\ndef f(): return n", "for n in range(2):\n    assert f() == n"),
    "an import that replaces a name": ("math = 7\ndef f(): return math", "import math\nassert f() != 7"),
    "in place": ("def f(x):\n    x.sort()\n    return x", "xs = [3, 1]\nassert xs == f(xs)"),
    "compared objects": (
        (
            "class V:\n    def __init__(s, n): s.n = n\n    def __lt__(s, o): return s.n < o.n\n"
            "    def __eq__(s, o): return s.n == o.n\n    def __abs__(s): return s.n"
        ),
        "assert V(1) < V(2)\nassert V(1) == V(1)",
    ),
    "abs of an object": (
        "class V:\n    def __init__(s, n): s.n = n\n    def __abs__(s): return s.n",
        "assert abs(V(5)) == 5",
    ),
    "a fraction's numbers": (
        "from fractions import Fraction\ndef f(): return Fraction(4, 2)",
        "assert float(f()) == 2",
    ),
    "a mapping with a default": (
        "from collections import Counter\ndef f(): return Counter('a')",
        "assert f()['b'] == 0\nassert f()['a'] == 1",
    ),
    "a nan that is itself": ("import math\ndef f(): return [math.nan]", "import math\nassert f() == [math.nan]"),
    "truth of an object": ("class V:\n    def __bool__(s): return False\ndef f(): return V()", "assert not f()"),
    "elements by index": (
        "class V:\n    def __getitem__(s, i): return 2 * i\ndef f(): return V()",
        "assert f()[4] == 8",
    ),
    # wrong programs that passed
    "in place and unsorted": (
        "def f(x):\n    y = list(x)\n    x.sort()\n    return y",
        "xs = [3, 1]\nassert xs == f(xs)",
    ),
    "in place, unequal": ("def f(x):\n    y = list(x)\n    x.sort()\n    return y", "xs = [3, 1]\nassert xs != f(xs)"),
    "emptied": ("def f(x):\n    x.clear()\n    return 0", "xs = [3]\nassert (xs, f(xs)) == ([3], 0)"),
    "a frozenset": ("def f(x): return frozenset()", "assert isinstance(f(1), set)"),
    "ordered in another order": (
        "from collections import OrderedDict as O\ndef f(x): return O([(x, 1), (1 - x, 1)])",
        "assert f(0) == f(1)",
    ),
    "one list for all": (
        "a = []\ndef f(x):\n    a.append(x)\n    return a",
        "def check(c):\n    a = c(1)\n    b = c(2)\n    assert a == [1]\ncheck(f)",
    ),
    "one list for all, in one assertion": (
        "a = []\ndef f(x):\n    a.append(x)\n    return a",
        "assert [f(1), f(2)] == [[1], [1, 2]]",
    ),
    "false before a call that raises": ("def f(x): raise ValueError", "assert 1 == 2\nassert f(1) == 1"),
}
"""Pairs that disagreed when this test was written, in their smallest form."""

PROGRAMS: Final = (
    "def {}(x=0, *a, **k): return x",
    "def {}(*a, **k): return (a, k)",
    "def {}(x=1, y=2, *a, **k): return [x, y]",
    "def {}(*a, **k): return ?",
    "def {}(x=0, *a, **k):\n    if x == ?: raise ValueError('no')\n    return x",
    "def {}(x=0, *a, **k):\n    if x == ?: raise AssertionError('own')\n    return x",
    "def {}(x=0, *a, **k):\n    if isinstance(x, list): x.append(5)\n    return x",
    "def {}(x=0, *a, **k):\n    if isinstance(x, list) and x: return x.pop()\n    return ?",
    "def {}(x=0, *a, _memo=[], **k):\n    _memo.append(x)\n    return len(_memo)",
    "def {}(x=0, *a, **k): return 10 // x if isinstance(x, int) else x[0]",
    "def {}(x=0, *a, **k): return x[::-1] if isinstance(x, (str, list, tuple)) else [type(x).__name__]",
)
"""`{}` is the name, `?` a constant."""
_SCALARS: Final = (
    "0;1;-1;2;3;7;True;False;None;0.0;-0.0;0.5;1.0;-2.5;1e300;10**20;2**53 + 1;float('inf');1j;2+0j;"
    "'';'a';'abc';' X ';'12';'\\ud800';b'';b'ab'"
)
_ANY: Final = (
    "(@, 1);[@];{'k': @}['k'];not @;@ or 3;@ and 4;@ is None;@ == 1 == True;@ in [1, None];bool(@);str(@);[@, 1][0];"
    "'%s' % (@,);[v for v in [@]][0];@ != @;(@ if 1 else 2);[@ for _ in range(2)];isinstance(@, (int, str, set))"
)
_NUMBER: Final = (
    "abs(@);round(@);round(@, 1);-@;~@;@ + 1;@ * 2;@ / 3;@ // 2;@ % -3;@ ** 2;@ ** -1;2 ** (@ % 9);@ << 2;@ >> 1;@ & 6;"
    "@ ^ 5;@ | 9;7 % @;int(@);float(@);math.floor(@);math.sqrt(@);math.isclose(@, 1);math.copysign(1, @);max(@, 2);"
    "sum([@, 1]);0 < @ < 10;'ab' * (@ % 4);@ in {1: 2};'%d' % @;1 / @"
)
_TEXT: Final = (
    "@.upper();@.strip();@[1:];@[::-1];@[0];@ + 'x';@ * 2;'a' in @;len(@);@.split();sorted(@);list(@);set(@);int(@);"
    "@ < 'b';@.startswith('a');max(@)"
)
_PARTS: Final = (
    "sorted(@);set(@);frozenset(@);tuple(@);sum(@);len(@);min(@);max(@);any(@);all(@);@[0];@[-1];@[1:];@[::-1];@ + [1];"
    "@ * 2;list(reversed(@));1 in @;list(enumerate(@));list(zip(@, [1, 2]));@ < [2];sorted(@, reverse=True);len(set(@))"
)
_DICT: Final = "len(@);list(@);sorted(@);@['a'];'a' in @;@ | {1: 2};@ == {};set(@);@[1]"
_SET: Final = "len(@);sorted(@);@ | {1};@ & {1};@ - {1};@ ^ {1};1 in @;@ <= {1};isinstance(@, set)"
GROWTH: Final[dict[type, str]] = {
    **dict.fromkeys((bool, int, float, complex), _NUMBER),
    **dict.fromkeys((list, tuple, bytes), _PARTS),
    str: _TEXT,
    dict: _DICT,
    set: _SET,
    frozenset: _SET,
}
STATEMENTS: Final = (
    *("assert @ == ?", "assert @ == ?, 'no'", "assert ? == @", "assert @ != ?", "assert @ in [?, 1]", "assert @ is ?"),
    *("assert @", "assert @ == ? and f(1) != 77", "assert $ <= @ <= ?", "assert abs(@ - ?) < 1e-6", "r = @", "f($)"),
    *("a = $\nassert f(a) == ?", "a = [$]\nassert f(a) == a", "a = [$]\nb = a\nf(a)\nassert b == [$]"),
    *("a = [$]\nassert [a, f(a)] == [[$], ?]", "a, b = $, ?\nassert f(a) != b", "assert [f(i) for i in range(2)] != ?"),
    *("r = @\nassert r is None or r == ? or r > 1", "r = @\nassert not (r != ? and r[0])", "r = @\nassert r == ?"),
    *("for i in range(2):\n    assert f(i) != ?", "for x, y in [($, ?), (1, 1)]:\n    assert f(x) == y"),
    *("assert all(f(i) != ? for i in range(3))", "n = 0\nwhile n < 2:\n    assert f(n) != ?, n\n    n += 1"),
    "def same(p, q):\n    return p == q or abs(p - q) < 1\nassert same(@, ?)",
    "def one(p):\n    for q in [p]:\n        if q == ?:\n            return 1\n    return f(p)\nassert one($) == ?",
    "try:\n    f($)\nexcept ValueError:\n    pass",
)
"""`@` is an expression, `?` its value or another one, `$` a constant."""


class Pairs:
    """Random programs and texts of tests."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def make(self) -> tuple[str, str]:
        """The text is built statement by statement; Python runs the text so far to compute a value."""
        program = "\n".join(self.chance.choice(PROGRAMS).format(name).replace("?", self.value()) for name in "fg")
        text = "import math"
        for _ in range(self.chance.choice((1, 1, 2, 3))):
            expression, value = self.expression(program, text)
            statement = self.chance.choice(STATEMENTS)
            text += "\n" + statement.replace("$", self.value()).replace("?", value).replace("@", expression)
            if isinstance(_value(program, text, "1"), Exception):
                break
        if self.chance.random() < 0.3:
            body = text.replace("f(", "candidate(").replace("\n", "\n    ")
            return program, f"def check(candidate):\n    {body}\ncheck(f)"
        return program, text

    def scalar(self) -> str:
        return self.chance.choice(_SCALARS.split(";"))

    def value(self, depth: int = 0) -> str:
        """The text of a constant."""
        kind = self.chance.randrange(9 if depth < 2 else 5)
        if kind < 5:
            return self.scalar()
        parts = [self.value(depth + 1) for _ in range(self.chance.randrange(3))]
        if kind == 8:
            return f"{{{', '.join(f'{self.scalar()}: {part}' for part in parts)}}}"
        return f"({', '.join([*parts, ''])})" if kind == 7 and parts else f"[{', '.join(parts)}]"

    def expression(self, program: str, text: str) -> tuple[str, str]:
        """An expression with a call, and the text of its value, or of another one."""
        one, other = self.value(), self.value()
        found = f"{self.chance.choice('ffg')}({self.chance.choice((one, f'{one}, {other}', f'g({one})', '*(1, 2)'))})"
        value = _value(program, text, found)
        for _ in range(self.chance.randrange(4)):
            forms = GROWTH.get(type(value), _ANY) if self.chance.random() < 0.8 else _ANY
            grown = self.chance.choice(forms.split(";")).replace("@", f"({found})")
            new = _value(program, text, grown)
            if not isinstance(new, Exception) or self.chance.random() < 0.1:
                found, value = grown, new
        shown = repr(value)
        plain = len(shown) < _MOST_CHARS and not any(odd in shown for odd in ("nan", "inf", "<", "set"))
        return found, shown if plain and self.chance.random() < 0.8 else self.value()


def _value(program: str, text: str, expression: str) -> Any:
    space: dict[str, Any] = {}
    try:
        exec(f"{program}\n{text}\n_value = {expression}", space)
    except Exception as error:  # noqa: BLE001  # the assertion will raise it as well
        return error
    return space["_value"]


def _ended(error: BaseException) -> Ended:
    return ("failed" if isinstance(error, AssertionError) else "error"), type(error).__name__


def as_python(program: str, tests: str) -> Ended:
    """Return the verdict of plain Python."""
    space: dict[str, Any] = {"__builtins__": builtins, "__name__": "__main__"}
    try:
        exec(program, space)
        exec(tests, space)
    except Exception as error:  # noqa: BLE001  # whatever the text raises
        return _ended(error)
    return "passed", ""


def as_split(program: str, tests: str) -> Ended | None:
    """Return the verdict of plan, harness and judge; None if the text is not split."""
    plan = split(tests)
    if plan is None:
        return None
    report: list[bytes] = []
    sender = calls._Sender(report.append, lambda: 1, guard.REPORT_BYTES)
    space: dict[str, Any] = {"__builtins__": builtins, "__name__": "__main__"}
    instructions = marshal.loads(plan.payload)
    try:
        exec(program, space)
        calls._run(instructions, space, sender)
        sender.line(b"[]\n")
    except Exception as error:  # noqa: BLE001  # whatever the program raises
        sender.line(guard.describe(error) + b"\n")
    finding = Judge(plan).take(b"".join(report))
    return finding.decided, finding.exception


@pytest.fixture(autouse=True)
def silent() -> Any:
    """Random texts compare odd things, which Python's compiler warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_that_disagreed_agrees(name: str) -> None:
    assert as_split(*PAIRS[name]) in (None, as_python(*PAIRS[name]))


def test_random_pairs_have_pythons_verdict() -> None:
    pairs = Pairs(SEED)
    differ: list[tuple[str, str, Ended, Ended]] = []
    judged = dict.fromkeys(("passed", "failed", "error"), 0)
    for _ in range(CASES):
        program, tests = pairs.make()
        found = as_split(program, tests)
        if found is not None:
            wanted = as_python(program, tests)
            judged[wanted[0]] += 1
            if found != wanted:
                differ.append((program, tests, wanted, found))
    assert not differ, f"{len(differ)} of {judged}, the shortest: {min(differ, key=lambda one: len(one[0] + one[1]))}"
    assert min(judged.values()) * 50 > math.isqrt(CASES), judged
