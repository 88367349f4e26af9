"""The rules of the architecture, each a function from a module to the lines that break it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.architecture.executors import declarations_import_only_shared, resources_are_named_by_their_executors
from tests.architecture.layers import layers_are_kept
from tests.architecture.source import Finding, Module, dotted

Rule = Callable[[Module], Iterator[Finding]]

MOST_LINES = 330
"""About three hundred, with some grace: what one sitting can read."""

GENERATED = ("treadle/client/answers.py", "treadle/client/requests.py")
"""Modules that scripts/client_types.py writes; nobody edits them."""

DUSTBINS = frozenset({"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "misc.py"})
"""Names without a meaning: everything ends up under them."""

PURE = frozenset(
    {"__future__", "abc", "array", "bisect", "collections", "copy", "dataclasses", "enum", "fractions", "functools",
     "heapq", "itertools", "math", "numbers", "operator", "random", "statistics", "string", "struct", "types",
     "typing", "numpy", "numba", "msgspec", "shared.policy", "treadle.lab.replay"}
)  # fmt: skip
"""Modules that decisions may import: without clock, machine and network. (msgspec: for values that are also stored.)"""

IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval", "breakpoint", "__import__"})

KEYS = Path(__file__).parents[2] / "shared" / "bus" / "keys.py"


def prefixes_of_keys() -> set[str]:
    """Names before the first colon of the keys in `KEYS`."""
    texts = {node.value for node in ast.walk(ast.parse(KEYS.read_text("utf-8"))) if isinstance(node, ast.Constant)}
    return {found[1] for text in texts if isinstance(text, str) and (found := re.match(r"([a-z]+):(?!\s)", text))}


KEY = re.compile(f"({'|'.join(sorted(prefixes_of_keys()))}):(?! )")
"""Beginning of a key of Valkey. A space after the colon is found only in sentences."""

REQUEST_IDS = {("services/proxy/http/swerex/acting.py", "swerex:")}
"""Texts that begin as a key does, and are the request ids of a dialect."""

STRANGERS = ("treadle/lab/bench/", "treadle/stack/valkey.py")
"""The bench looks at a server from outside; the stack reads the settings of one, and no data."""

RANDOM = frozenset({"random", "np.random", "numpy.random"})

SEEDED = frozenset({"random.Random", "np.random.Generator", "numpy.random.Generator"})
"""The only names of the random modules that are no hidden global state."""

WORK = frozenset(
    {"create_app", "FastAPI", "Starlette", "create_engine", "create_async_engine", "connect", "from_url", "Redis",
     "run", "run_until_complete", "Popen", "check_call", "check_output", "call", "system", "fork", "open", "read_text",
     "read_bytes", "write_text", "mkdir", "getenv", "load", "Thread", "Process", "ThreadPoolExecutor",
     "ProcessPoolExecutor", "socket", "sleep", "basicConfig", "dictConfig", "print"}
)  # fmt: skip
"""Calls, by their last name, that a module must not make while it is imported."""


WARMED = ("services/cpu_manager/sandbox/harnesses/",)
"""Modules that a zygote imports before it forks, so that no child imports them again."""


def services_never_import_each_other(module: Module) -> Iterator[Finding]:
    """`services/x` imports `shared` and itself; services communicate over the bus."""
    if module.package[:1] == ["services"] and len(module.package) > 1:
        own = module.package[1]
        for node, name in module.imports():
            parts = name.split(".")
            if parts[0] == "services" and (len(parts) < 2 or parts[1] != own):
                yield module.found(node, f"service {own} imports {name}: services meet on the bus alone")


def decisions_are_pure(module: Module) -> Iterator[Finding]:
    """`shared/policy` and `treadle/lab/replay`: no clock, no IO, no chance of their own, nothing asynchronous."""
    if not _decides(module):
        return
    for node, name in module.imports():
        if not any(name == pure or name.startswith(f"{pure}.") for pure in PURE):
            yield module.found(node, f"imports {name}: decisions import only {', '.join(sorted(PURE))}")
        if name.startswith(("random.", "numpy.random.")) and name not in SEEDED:
            yield module.found(node, f"imports {name}: chance is an argument, a random.Random")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await):
            yield module.found(node, "is asynchronous: decisions are plain functions")
        elif isinstance(node, ast.comprehension) and node.is_async:
            yield module.found(node.target, "is asynchronous: decisions are plain functions")
        elif isinstance(node, ast.Call) and dotted(node.func) in IMPURE_CALLS:
            yield module.found(node, f"calls {dotted(node.func)}(): decisions do no IO")
        elif isinstance(node, ast.Attribute) and dotted(node.value) in RANDOM and dotted(node) not in SEEDED:
            yield module.found(node, f"uses {dotted(node)}: chance is an argument, a random.Random")


def decisions_are_documented(module: Module) -> Iterator[Finding]:
    """Every module of the core opens with its law or theory of operation."""
    if _decides(module) and not ast.get_docstring(module.tree):
        yield Finding(module.path, 1, "has no docstring: state its law, and the paper's section")


GENERATED = ("treadle/client/answers.py", "treadle/client/requests.py")
"""Modules that scripts/client_types.py writes: nobody edits them."""


def files_are_short(module: Module) -> Iterator[Finding]:
    lines = module.text.count("\n")
    if lines > MOST_LINES and module.path not in GENERATED:
        yield Finding(module.path, MOST_LINES + 1, f"has {lines} lines, more than {MOST_LINES}: split it by subject")


def files_have_names(module: Module) -> Iterator[Finding]:
    name = module.path.rsplit("/", 1)[-1]
    if name in DUSTBINS:
        yield Finding(module.path, 1, f"is called {name}: name it by what is in it")


def importing_does_nothing(module: Module) -> Iterator[Finding]:
    """A module only defines: no connection, no file, no environment, no application at import."""
    for statement in [] if module.path.startswith(WARMED) else _at_import(module.tree.body):
        if isinstance(statement, ast.With | ast.AsyncWith | ast.While):
            yield module.found(statement, "runs at import: put it into a function")
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call | ast.Await):
            yield module.found(statement, f"calls {_called(statement.value)}() for its effect at import")
            continue
        for node in _evaluated(statement):
            if isinstance(node, ast.Call):
                name = dotted(node.func)
                if name.rsplit(".", 1)[-1] in WORK:
                    yield module.found(node, f"calls {name}() at import: make it in a function that is called")
            elif isinstance(node, ast.Attribute) and dotted(node) == "os.environ":
                yield module.found(node, "reads the environment at import: settings do, when they are loaded")


def the_bus_owns_valkey(module: Module) -> Iterator[Finding]:
    """Only `shared/bus` sends a command to Valkey or formats a key. The bench also reads as a stranger."""
    if module.package[:2] == ["shared", "bus"] or module.path.startswith(STRANGERS):
        return
    for node, name in module.imports():
        if name in ("shared.bus.connection.command", "shared.bus.functions.call"):
            yield module.found(node, f"imports {name}: call a function of shared/bus that knows the key")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = dotted(node.func.value).rsplit(".", 1)[-1]
            if node.func.attr in ("execute_command", "pipeline") or (
                owner in ("redis", "_redis") and node.func.attr != "aclose"
            ):
                yield module.found(node, f"calls {dotted(node.func)}(): commands are sent by shared/bus alone")
        elif isinstance(node, ast.JoinedStr) and node.values and isinstance(node.values[0], ast.Constant):
            prefix = str(node.values[0].value)
            if KEY.match(prefix) and len(node.values) > 1 and (module.path, prefix) not in REQUEST_IDS:
                yield module.found(node, f"formats a key, {prefix!r}: shared/bus/keys.py does")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and isinstance(node.left, ast.Constant):
            text = node.left.value.decode(errors="replace") if isinstance(node.left.value, bytes) else node.left.value
            if KEY.match(str(text)):
                yield module.found(node, f"formats a key, {text!r}: shared/bus/keys.py does")


HTTP_CLIENTS = ("aiohttp", "httpx", "requests", "urllib3", "urllib.request", "http.client")

CALLS_OUT = frozenset(
    {
        "shared/runtime/http.py",
        "shared/runtime/http_addresses.py",
        "shared/runtime/http_connections.py",
        "shared/runtime/http_streams.py",
        "services/cpu_manager/environments/docker/engine.py",
        "services/cpu_manager/forwarder/served.py",
        "services/gpu_manager/torch_server/serving.py",
    }
)
"""The runtime's HTTP clients, of which `http_streams` reaches what operators have registered; that of the container
engine, because aiodocker takes a connector of aiohttp; and the forwarder and the torch server, which only serve with
aiohttp."""


def http_goes_through_the_runtime(module: Module) -> Iterator[Finding]:
    """Services call out by `shared/runtime/http.py` alone, which bounds each call and judges its addresses."""
    if module.package[:1] == ["treadle"] or module.path in CALLS_OUT:
        return
    for node, name in module.imports():
        if any(name == client or name.startswith(f"{client}.") for client in HTTP_CLIENTS):
            yield module.found(node, f"imports {name}: calls go out through shared/runtime/http.py")


RULES: tuple[Rule, ...] = (
    http_goes_through_the_runtime,
    the_bus_owns_valkey,
    services_never_import_each_other,
    layers_are_kept,
    decisions_are_pure,
    decisions_are_documented,
    files_are_short,
    files_have_names,
    importing_does_nothing,
    resources_are_named_by_their_executors,
    declarations_import_only_shared,
)


def _decides(module: Module) -> bool:
    return module.package[:2] == ["shared", "policy"] or module.package[:3] == ["treadle", "lab", "replay"]


def _at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported; not those of `if __name__ == "__main__"`."""
    for statement in body:
        if isinstance(statement, ast.If):
            if "__name__" not in {node.id for node in ast.walk(statement.test) if isinstance(node, ast.Name)}:
                yield from _at_import([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            handlers = [one for handler in statement.handlers for one in handler.body]
            yield from _at_import([*statement.body, *handlers, *statement.orelse, *statement.finalbody])
        elif isinstance(statement, ast.ClassDef | ast.For):
            yield from _at_import(statement.body)
        else:
            yield statement


def _evaluated(statement: ast.stmt) -> Iterator[ast.AST]:
    """Expressions of a statement that are evaluated when it runs: defaults and decorators, but no bodies."""
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending += [*node.decorator_list, *node.args.defaults, *(one for one in node.args.kw_defaults if one)]
        elif isinstance(node, ast.Lambda):
            pending += [*node.args.defaults, *(one for one in node.args.kw_defaults if one)]
        else:
            pending += ast.iter_child_nodes(node)


def _called(node: ast.Call | ast.Await) -> str:
    return dotted(node.func) if isinstance(node, ast.Call) else "await"
