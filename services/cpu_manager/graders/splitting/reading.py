"""From the text of the tests to a plan: a strict list of statements, read in order."""

from __future__ import annotations

import ast
import asyncio
from collections import OrderedDict
from typing import Any, Final

from services.cpu_manager.graders.splitting.builtin_calls import math_member
from services.cpu_manager.graders.splitting.expressions import Expressions
from services.cpu_manager.graders.splitting.plan import (
    Later,
    Recorder,
    Register,
    SplitPlan,
    StepBudget,
    UnsplittableError,
)
from services.cpu_manager.graders.splitting.symbols import BUILTIN_NAMES, Hidden, Scope, bind

MOST_CHARS: Final = 8 << 10
"""Longer texts are not read: parsing and compiling take about 2 us a character and hold the interpreter's lock."""
MOST_PLANS: Final = 512
_MOST_KEPT_CHARS: Final = 4 << 20
_INLINE_CHARS: Final = 256
"""Shorter texts are split in the loop: 0.1 ms as a rule, which is what a thread costs, and some 30 ms at worst."""
_MESSAGE_CHARS: Final = 500
_CHECK: Final = "check"
_METADATA: Final = "METADATA"

_STATEMENTS: Final = (ast.Assert, ast.Assign, ast.Expr, ast.For, ast.FunctionDef, ast.Import, ast.ImportFrom, ast.Pass)
_PARTS: Final = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.arguments, ast.arg)
_EXPRESSIONS: Final = (
    *(ast.Attribute, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.Constant, ast.Dict, ast.FormattedValue),
    *(ast.GeneratorExp, ast.JoinedStr, ast.List, ast.ListComp, ast.Name, ast.Set, ast.Slice, ast.Subscript),
    *(ast.Tuple, ast.UnaryOp, ast.comprehension, ast.keyword, ast.alias),
)
_ALLOWED: Final = (ast.Module, *_STATEMENTS, *_PARTS, *_EXPRESSIONS)


def split(text: str) -> SplitPlan | None:
    """Split the text of tests. Takes about 2 us a character and 1 us a step, once: `PlanCache` keeps the results.

    Returns None if a part of the text has an unsupported form. Only the text decides.
    """
    if len(text) > MOST_CHARS:
        return None
    return _Statements().plan_of(text)


class PlanCache:
    """Plans by text, because many samples have the same tests; at most MOST_PLANS texts and 4 Mi characters, LRU."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, SplitPlan | None] = OrderedDict()
        self._chars = 0

    async def get(self, text: str) -> SplitPlan | None:
        """Return the plan of a text of tests; None if it has none."""
        if len(text) > MOST_CHARS:
            return None
        if text in self._kept:
            self._kept.move_to_end(text)
            return self._kept[text]
        plan = split(text) if len(text) <= _INLINE_CHARS else await asyncio.to_thread(split, text)
        if text not in self._kept:
            self._kept[text] = plan
            self._chars += len(text)
            while len(self._kept) > MOST_PLANS or self._chars > _MOST_KEPT_CHARS:
                oldest, _ = self._kept.popitem(last=False)
                self._chars -= len(oldest)
        return plan


class _Statements:
    """Reads statements."""

    def __init__(self) -> None:
        self.steps = StepBudget()
        self._recorder = Recorder(self.steps)
        self._expressions = Expressions(self._recorder, self.steps)
        self._shared: dict[str, Any] = {}
        self._check: ast.FunctionDef | None = None
        self._called = False

    def plan_of(self, text: str) -> SplitPlan | None:
        """Return the plan of a whole text; None if it has none."""
        try:
            tree = ast.parse(text)
            if not all(isinstance(node, _ALLOWED) for node in ast.walk(tree)):
                return None
            compile(tree, "tests.py", "exec", dont_inherit=True)  # finds repeated names, and more that no tree shows
            scope = Scope(self._shared, {})
            for statement in tree.body:
                self._at_module_level(statement, scope)
            if self._check is not None and not self._called:
                return None
            return self._recorder.plan()
        except (UnsplittableError, RecursionError, MemoryError):
            return None
        except Exception:  # noqa: BLE001  # computing a constant failed: the run in the sandbox gives Python's error
            return None

    def _at_module_level(self, node: ast.stmt, scope: Scope) -> None:
        """Read a statement. A text that binds names of the module is not split.

        The program could read these names, and they could replace its own.
        """
        self.steps.take()
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._recorder.add("import", _import_of_math(node))  # the program sees it too, as in one file
            self._bind_math(node, self._shared)
        elif isinstance(node, ast.FunctionDef):
            self._define(node)
        elif isinstance(node, ast.Assign):
            if [target.id for target in node.targets if isinstance(target, ast.Name)] != [_METADATA]:
                raise UnsplittableError("assignment")
            self._expressions.constant(node.value, scope)
            self._shared[_METADATA] = Hidden(_METADATA)
        elif (name := _called_by_check(node)) is not None:
            self._run_check(name)
        elif isinstance(node, ast.For):
            raise UnsplittableError("a loop that binds names of the module")
        else:
            self._anywhere(node, scope)

    def _define(self, node: ast.FunctionDef) -> None:
        given = node.args
        plain = not (given.vararg or given.kwarg or given.kwonlyargs or given.defaults or given.posonlyargs)
        bare = node.returns is None and not node.decorator_list and not getattr(node, "type_params", None)
        if node.name != _CHECK or self._check is not None or not plain or not bare or len(given.args) != 1:
            raise UnsplittableError("function")
        if given.args[0].annotation is not None:
            raise UnsplittableError("annotation")
        self._check = node
        self._shared[_CHECK] = Hidden(_CHECK)

    def _run_check(self, name: str) -> None:
        if self._check is None or self._called or name in self._shared or name in BUILTIN_NAMES:
            raise UnsplittableError("check")
        self._called = True
        candidate = self._check.args.args[0].arg
        declared = {inner.id for inner in ast.walk(self._check) if isinstance(inner, ast.Name) and _binds(inner)}
        declared |= {alias.asname or alias.name for inner in ast.walk(self._check) for alias in _aliases(inner)}
        if candidate in declared:
            raise UnsplittableError("the candidate is replaced")
        scope = Scope(self._shared, {candidate: self._recorder.add("name", name)}, frozenset(declared))
        self._block(self._check.body, scope)

    def _block(self, body: list[ast.stmt], scope: Scope) -> None:
        """Read statements of `check`. The names that they bind are local to it."""
        for node in body:
            self.steps.take()
            if isinstance(node, ast.Import | ast.ImportFrom):
                _import_of_math(node)
                self._bind_math(node, scope.local)
            elif isinstance(node, ast.Assign):
                value = self._expressions.read(node.value, scope)
                if isinstance(value, Later):
                    raise UnsplittableError("an operation that no assertion asks for")
                for target in node.targets:
                    bind(target, value, scope.local)
            elif isinstance(node, ast.For):
                if node.orelse:
                    raise UnsplittableError("else")
                for element in self._expressions.elements(node.iter, scope):
                    bind(node.target, element, scope.local)
                    self._block(node.body, scope)
            elif isinstance(node, ast.FunctionDef):
                raise UnsplittableError("function")
            else:
                self._anywhere(node, scope)

    def _anywhere(self, node: ast.stmt, scope: Scope) -> None:
        if isinstance(node, ast.Assert):
            self._expressions.check(node.test, scope, node.lineno, _message(node.msg))
        elif isinstance(node, ast.Expr):
            self._expression(node.value, scope)
        elif not isinstance(node, ast.Pass):
            raise UnsplittableError(type(node).__name__)

    def _expression(self, node: ast.expr, scope: Scope) -> None:
        if isinstance(node, ast.Constant):
            return
        if isinstance(node, ast.Name) and node.id == "print" and scope.is_builtin("print"):
            return
        if not isinstance(self._expressions.read(node, scope), Register):
            raise UnsplittableError("an operation that no assertion asks for")

    def _bind_math(self, node: ast.Import | ast.ImportFrom, names: dict[str, Any]) -> None:
        for alias in node.names:
            found = Hidden("math") if isinstance(node, ast.Import) else math_member(alias.name)
            names[alias.asname or alias.name] = found


def _import_of_math(node: ast.Import | ast.ImportFrom) -> str:
    """Return the statement, for the sandbox."""
    if isinstance(node, ast.ImportFrom):
        if node.module != "math" or node.level or any(alias.name == "*" for alias in node.names):
            raise UnsplittableError("import")
    elif [alias.name for alias in node.names] != ["math"]:
        raise UnsplittableError("import")
    return ast.unparse(node)


def _aliases(node: ast.AST) -> list[ast.alias]:
    return node.names if isinstance(node, ast.Import | ast.ImportFrom) else []


def _binds(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _called_by_check(node: ast.stmt) -> str | None:
    """Return the name in `check(name)`."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != _CHECK:
        return None
    if len(call.args) != 1 or call.keywords or not isinstance(call.args[0], ast.Name):
        raise UnsplittableError("check")
    return call.args[0].id


def _message(node: ast.expr | None) -> str:
    """Return the message of an assertion. Python evaluates it only after the assertion has failed.

    Messages that show results are left out: converting them to text can fail only if a call in them fails.
    """
    if node is None:
        return ""
    if isinstance(node, ast.Constant):
        return str(node.value)[:_MESSAGE_CHARS] if isinstance(node.value, str | int | float | None) else ""
    if not _is_text(node):
        raise UnsplittableError("message")
    if not all(map(_only_shows, ast.walk(node))):
        raise UnsplittableError("message")
    return ""


def _only_shows(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        function = node.func
        named = isinstance(function, ast.Name) and function.id not in BUILTIN_NAMES - {"str", "repr"}
        return named and not node.keywords
    if isinstance(node, ast.FormattedValue):
        return node.format_spec is None
    return not isinstance(node, ast.Attribute | ast.Subscript | ast.Compare | ast.ListComp | ast.GeneratorExp)


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _is_text(node.left) and _is_text(node.right)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("str", "repr") and len(node.args) == 1
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
