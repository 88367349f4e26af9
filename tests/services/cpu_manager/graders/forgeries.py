"""Wrong programs for the grader's own tests. Each forges something; none returns the right results."""

from __future__ import annotations

from typing import Final

ALWAYS: Final = """
class Always:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __contains__ = __lt__
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
"""

OPERANDS: Final = {
    "an object that equals everything": ALWAYS + "def f(x): return Always()",
    "a number that equals everything": "class N(int):\n    __eq__ = lambda s, o: True\ndef f(x): return N(0)",
    "a text that equals everything": "class S(str):\n    __eq__ = lambda s, o: True\ndef f(x): return S('a')",
    "a float that equals everything": "class F(float):\n    __eq__ = lambda s, o: True\ndef f(x): return F(0.5)",
    "a list that equals everything": "class L(list):\n    __eq__ = lambda s, o: True\ndef f(x): return L([1])",
    "a dict that equals everything": "class D(dict):\n    __eq__ = lambda s, o: True\ndef f(x): return D(a=1)",
    "a class that equals everything": ALWAYS + "class Meta(type):\n    __eq__ = lambda s, o: True\n"
    "    __hash__ = type.__hash__\nclass Odd(metaclass=Meta): pass\ndef f(x): return Odd",
    "a class that claims to be a number": "class C:\n    __class__ = int\n    __eq__ = lambda s, o: True\n"
    "    __index__ = lambda s: 2\ndef f(x): return C()",
    "equal objects in a list": ALWAYS + "def f(x): return [Always()]",
    "the function itself": ALWAYS + "f = Always()",
    "an iterator": "def f(x): return iter([2, 3])",
    "nested beyond every depth": "def f(x):\n    v = []\n    for _ in range(100_000): v = [v]\n    return v",
    "a cycle": "def f(x):\n    v = []\n    v.append(v)\n    return v",
    "a cycle of dicts": "def f(x):\n    v = {}\n    v['v'] = v\n    return v",
    "an integer of a million digits": "def f(x): return 1 << 3_500_000",
    "a result of many megabytes": "def f(x): return ['a' * 100] * 200_000",
    "integers that collide": "def f(x): return {i * (2**61 - 1) for i in range(300)}",
    "not a number": "def f(x): return float('nan')",
    "half a surrogate pair": "def f(x): return '\\ud800'",
}
"""Values that a program returns instead of a result."""

WRITING: Final = {
    "results of its own, before the calls": """
        import os
        lines = b''.join(b'[%d,%d]\\n' % (n, v) for n in range(6) for v in range(2)) + b'[]\\n'
        for descriptor in range(3, 2000):
            try:
                os.write(descriptor, lines)
            except OSError:
                pass
        def f(x): return 0
        """,
    "the end of the results, before the calls": """
        import os
        for descriptor in range(3, 2000):
            try:
                os.write(descriptor, b'[]\\n' * 3)
            except OSError:
                pass
        os._exit(0)
        """,
    "tags that mean nothing": """
        import os
        def f(x):
            lines = b'[1,{"t":{"t":[]}}]\\n[1,{"x":1}]\\n[1]\\n[[]]\\n{"o":1}\\n\\xff\\n' + b'[' * 5000
            for descriptor in range(3, 2000):
                try:
                    os.write(descriptor, lines)
                except OSError:
                    pass
            os._exit(0)
        """,
    "a report that claims another failure": """
        import os
        def f(x):
            for descriptor in range(3, 2000):
                try:
                    os.write(descriptor, b'{"exception": "passed", "decided": "passed", "passed": true}\\n')
                except OSError:
                    pass
            os._exit(0)
        """,
    "the harness's sender, by frames": """
        import sys
        def f(x):
            frame = sys._getframe(1)
            while frame:
                for value in list(frame.f_locals.values()):
                    if hasattr(value, 'line') and hasattr(value, 'result'):
                        value.line(b'[]\\n')
                frame = frame.f_back
            return 0
        """,
    "the harness's instructions, by frames": """
        import sys
        def f(x):
            frame = sys._getframe(1)
            while frame:
                for name in ('instructions', 'wanted'):
                    if name in frame.f_locals:
                        frame.f_locals[name].clear()
                frame = frame.f_back
            return 0
        """,
    "the report's descriptor duplicated": """
        import os
        def f(x):
            for descriptor in range(3, 1024):
                try:
                    os.dup2(1, descriptor)
                except OSError:
                    pass
            return 0
        """,
}
"""Output that a program writes itself."""

DEEPER: Final = {
    "every object of the collector": """
        import gc
        try:
            for found in gc.get_objects():
                if isinstance(found, dict):
                    for key in list(found):
                        if key in ('compare', 'check', 'finding', 'passed'):
                            found[key] = True
        except RuntimeError:
            pass
        def f(x): return 0
        """,
    "json and marshal replaced": """
        import json, json.encoder, marshal
        json.JSONEncoder.encode = json.dumps = lambda *a, **k: '2'
        json.encoder.c_make_encoder = None
        marshal.loads = lambda *a: ([], [])
        def f(x): return 0
        """,
    "an exit handler that answers": """
        import atexit, os
        atexit.register(lambda: [os.write(d, b'[]\\n') for d in range(256, 900)])
        def f(x): return 0
        """,
    "a thread that answers": """
        import os, threading
        def answer():
            while True:
                for d in range(256, 900):
                    try:
                        os.write(d, b'[]\\n')
                    except OSError:
                        pass
        threading.Thread(target=answer, daemon=True).start()
        def f(x): return 0
        """,
    "a child that answers": """
        import os
        def f(x):
            if os.fork() == 0:
                return 1
            os.wait()
            return 0
        """,
    "a frame's locals of the caller": """
        import ctypes, sys
        def f(x):
            frame = sys._getframe(1)
            for name in list(frame.f_locals):
                frame.f_locals[name] = 2
            try:
                ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
            except Exception:
                pass
            return 0
        """,
    "an exception that looks like a pass": "class Passed(Exception):\n    __str__ = lambda s: 'passed'\n"
    "def f(x): raise Passed",
    "an exception that cannot be shown": "class E(Exception):\n    def __str__(self): raise E\ndef f(x): raise E",
}
"""Changes of a program in its interpreter."""

WITHOUT_EXPECTED_VALUES: Final = {**OPERANDS, **WRITING, **DEEPER}
"""Forgeries that need no knowledge of the tests. Where comparison and program share an interpreter some succeed."""

TRUE: Final = "class True_:\n    def __getattr__(self, name): return lambda *a, **k: True\n"

JUDGED_BY_THE_PROGRAM: Final = {
    "a module that the tests do not import": (
        TRUE + "math = True_()\ndef f(x): return 0",
        "assert math.isclose(f(90), 1.5708, rel_tol=0.001)",
    ),
    "another module": (TRUE + "np = True_()\ndef f(x): return 0", "assert np.allclose(f([1.0]), [2.0])"),
    "a function that the tests do not define": (
        "def isclose(*a, **k): return True\ndef f(x): return 0",
        "assert isclose(f(90), 1.5708)",
    ),
    "a class on the other side": (
        "class Counter(dict):\n    __eq__ = lambda s, o: True\ndef f(x): return 0",
        "assert f('aab') == Counter({'a': 2, 'b': 1})",
    ),
    "a method of the result": (TRUE + "def f(): return True_()", "assert f().startswith('ab')"),
    "a container of its own": (
        "class All:\n    def __contains__(s, x): return True\ndef f(x): return All()",
        "assert 'b' in f('abc')",
    ),
    "an argument changed on the way": (
        "def f(x):\n    y = list(x)\n    x.sort()\n    return y",
        "xs = [3, 1, 2]\nassert xs != f(xs)",
    ),
}
"""Programs and texts in which the program would judge the expected value: never `separate`."""
