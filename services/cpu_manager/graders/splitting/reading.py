"""From the text of the tests to a plan: statements are read one after another, loops over constants are unrolled."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from typing import Any, Final

from services.cpu_manager.graders.splitting.expressions import Expressions, is_constant
from services.cpu_manager.graders.splitting.functions import member
from services.cpu_manager.graders.splitting.plan import Plan, Recorder, UnsplittableError
from services.cpu_manager.graders.splitting.symbols import Foreign, Function, Module, Scope

MOST_CHARS: Final = 64 << 10
"""Longer texts are not read: the parser takes about 1 us a character and holds the interpreter's lock."""
_MESSAGE_CHARS: Final = 500


class _Returned(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class _Broken(Exception):
    pass


class _Continued(Exception):
    pass


def split(text: str) -> Plan | None:
    """Split the text of tests. About 1 us a character, once: `Plans` keeps the results.

    Returns None where some part of the text has no form here. The text alone decides.
    """
    if len(text) > MOST_CHARS:
        return None
    try:
        return _Statements().plan(ast.parse(text))
    except (UnsplittableError, RecursionError, MemoryError):
        return None
    except Exception:  # noqa: BLE001  # computing a constant failed: Python says how, in the sandbox
        return None


class _Statements:
    """Reads statements."""

    def __init__(self) -> None:
        self._recorder = Recorder()
        self._expressions = Expressions(self._recorder, self._inline)

    def plan(self, module: ast.Module) -> Plan:
        """The plan of a whole text."""
        self._block(module.body, Scope())
        return self._recorder.plan()

    def _block(self, body: list[ast.stmt], scope: Scope) -> None:
        for statement in body:
            self._expressions.step()
            kind = type(statement).__name__
            reader: Callable[[Any, Scope], None] | None = getattr(self, f"_read_{kind.lower()}", None)
            if reader is None:
                raise UnsplittableError(kind)
            reader(statement, scope)

    def _read_pass(self, node: ast.Pass, scope: Scope) -> None:
        """Nothing."""

    def _read_break(self, node: ast.Break, scope: Scope) -> None:  # noqa: ARG002  # every reader's shape
        raise _Broken

    def _read_continue(self, node: ast.Continue, scope: Scope) -> None:  # noqa: ARG002  # every reader's shape
        raise _Continued

    def _read_return(self, node: ast.Return, scope: Scope) -> None:
        if scope.local is None:
            raise UnsplittableError("return outside a function")
        raise _Returned(None if node.value is None else self._expressions.read(node.value, scope))

    def _read_expr(self, node: ast.Expr, scope: Scope) -> None:
        if not isinstance(node.value, ast.Constant | ast.Name):
            self._expressions.read(node.value, scope)
        elif isinstance(node.value, ast.Name) and node.value.id != "print":
            raise UnsplittableError("a name as a statement")

    def _read_assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self._expressions.read(node.value, scope)
        for target in node.targets:
            self._expressions.assign(target, value, scope)

    def _read_annassign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is None:
            raise UnsplittableError("a declaration")
        self._check_annotation(node.annotation, scope)
        self._expressions.assign(node.target, self._expressions.read(node.value, scope), scope)

    def _read_augassign(self, node: ast.AugAssign, scope: Scope) -> None:
        if not isinstance(node.target, ast.Name):
            raise UnsplittableError("assignment")
        before = self._expressions.constant(ast.Name(node.target.id, ast.Load()), scope)
        if type(before) not in (int, float, str, tuple, bool):
            raise UnsplittableError("a change in place")
        changed = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
        scope.bind(node.target.id, self._expressions.constant(changed, scope))

    def _read_assert(self, node: ast.Assert, scope: Scope) -> None:
        self._check(node.test, scope, node.lineno, self._message(node.msg, scope))

    def _message(self, node: ast.expr | None, scope: Scope) -> str:
        """The message of an assertion. Python reads it only after the assertion has failed.

        What is made from results is left out, where making a text of it cannot raise another exception.
        """
        if node is None or _only_shows(node):
            return ""
        return str(self._expressions.constant(node, scope))[:_MESSAGE_CHARS]

    def _check(self, test: ast.expr, scope: Scope, line: int, message: str) -> None:
        """An assertion. Of `and`, and of `all` over constants, each part is one: Python stops at the first as well."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for part in test.values:
                self._check(part, scope, line, message)
            return
        if (generator := _all_of(test, scope)) is not None:
            for each in self._expressions.comprehended(generator.generators, scope):
                self._check(generator.elt, each, line, message)
            return
        before = self._expressions.builtin_calls
        found = self._expressions.truth(test, scope)
        if not is_constant(found):
            self._recorder.check(found, line, message)
        elif self._expressions.builtin_calls > before:
            raise UnsplittableError("a builtin is asked, or a function of the program with its name")
        elif not found:
            self._recorder.check(False, line, message)

    def _read_if(self, node: ast.If, scope: Scope) -> None:
        self._block(node.body if self._expressions.constant(node.test, scope) else node.orelse, scope)

    def _read_for(self, node: ast.For, scope: Scope) -> None:
        for element in self._expressions.elements(node.iter, scope):
            self._expressions.assign(node.target, element, scope)
            try:
                self._block(node.body, scope)
            except _Broken:
                return
            except _Continued:
                continue
        self._block(node.orelse, scope)

    def _read_while(self, node: ast.While, scope: Scope) -> None:
        while self._expressions.constant(node.test, scope):
            try:
                self._block(node.body, scope)
            except _Broken:
                return
            except _Continued:
                continue
        self._block(node.orelse, scope)

    def _read_functiondef(self, node: ast.FunctionDef, scope: Scope) -> None:
        arguments = node.args
        if node.decorator_list or scope.local is not None or arguments.vararg or arguments.kwarg:
            raise UnsplittableError("function")
        if arguments.kwonlyargs or arguments.defaults or arguments.posonlyargs or _generates(node):
            raise UnsplittableError("function")
        for annotation in (node.returns, *(argument.annotation for argument in arguments.args)):
            self._check_annotation(annotation, scope)
        scope.bind(node.name, Function(node))

    def _check_annotation(self, node: ast.expr | None, scope: Scope) -> None:
        """Python evaluates it; so its names must be there."""
        names = [inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)] if node else []
        if not all(scope.find(name)[0] or hasattr(builtins, name) for name in names):
            raise UnsplittableError("annotation")

    def _inline(self, function: Function, arguments: list[Any], keywords: dict[str, Any], scope: Scope) -> Any:
        names = [argument.arg for argument in function.node.args.args]
        given = dict(zip(names, arguments, strict=False)) | keywords
        if len(arguments) + len(keywords) != len(names) or given.keys() != set(names):
            raise UnsplittableError("arguments")
        try:
            self._block(function.node.body, scope.inside(given))
        except _Returned as returned:
            return returned.value
        return None

    def _read_import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            known = alias.name == "math"
            self._import(node, scope, known=known)
            name = alias.asname or alias.name.partition(".")[0]
            scope.bind(name, Module(alias.name) if known else Foreign(name))

    def _read_importfrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        if node.level or node.module in (None, "__future__") or any(alias.name == "*" for alias in node.names):
            raise UnsplittableError("import")
        self._import(node, scope, known=node.module == "math")
        for alias in node.names:
            name = alias.asname or alias.name
            scope.bind(name, member("math", alias.name) if node.module == "math" else Foreign(name))

    def _import(self, node: ast.stmt, scope: Scope, *, known: bool) -> None:
        """Imports of the module level hold for the program too, as in one file."""
        if scope.local is None:
            self._recorder.add("import", ast.unparse(node))
        elif not known:
            raise UnsplittableError("import")


def _all_of(test: ast.expr, scope: Scope) -> ast.GeneratorExp | None:
    if not isinstance(test, ast.Call) or not isinstance(test.func, ast.Name) or test.func.id != "all":
        return None
    if scope.find("all")[0] or len(test.args) != 1 or test.keywords:
        return None
    return test.args[0] if isinstance(test.args[0], ast.GeneratorExp) else None


def _generates(node: ast.FunctionDef) -> bool:
    odd = (ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.NamedExpr)
    return any(isinstance(inner, odd) for inner in ast.walk(node))


def _only_shows(node: ast.expr) -> bool:
    """An f-string, `str(f(x))`, or a sum of texts with one of these."""
    if isinstance(node, ast.JoinedStr):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = (node.left, node.right)
        return any(map(_only_shows, sides)) and all(_only_shows(side) or _is_text(side) for side in sides)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr"):
        shown = node.args[0] if len(node.args) == 1 and not node.keywords else None
        return isinstance(shown, ast.Call) and isinstance(shown.func, ast.Name) and not hasattr(builtins, shown.func.id)
    return False


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
