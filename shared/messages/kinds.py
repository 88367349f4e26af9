"""Action kinds and their parameters: the contract between the front door (validates) and the nodes (execute).

A request's `params` are its stage template's `params` with the request's own laid over them. Unknown fields are an
error at the door, so a misspelt limit is never silently ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
MOST_FILES = 4096
MOST_FETCHED = 1024
MOST_GOLDS = 1024
MOST_PATTERN = 4096
"""Characters of a regular expression."""
Megabytes = Annotated[int, msgspec.Meta(ge=16, le=65536)]


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of every kind's parameters."""


class Noop(Params, frozen=True, kw_only=True):
    """Nothing: measures the mesh itself. Needs no core."""

    echo: str = ""


class Sleep(Params, frozen=True, kw_only=True):
    """Hold a place for a time without using a core: stands for work that waits."""

    seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)]


class CodeRun(Params, frozen=True, kw_only=True):
    """Compile (where the language does) and run a program: SandboxFusion's `run_code` as an action."""

    code: str
    language: str = "python"
    stdin: str | None = None
    files: Annotated[dict[str, str | None], msgspec.Meta(max_length=MOST_FILES)] = {}
    """Path -> base64 content."""
    fetch_files: Annotated[list[str], msgspec.Meta(max_length=MOST_FETCHED)] = []
    compile_timeout_s: Seconds = 10.0
    run_timeout_s: Seconds = 10.0
    memory_mb: Megabytes | None = None
    """None: the node's default (1024)."""


class CodeAsserts(Params, frozen=True, kw_only=True):
    """HumanEval/MBPP style: `code`, then `tests` (asserts) in one interpreter; passes when the last assert passed."""

    code: str
    tests: str
    entry_point: str | None = None
    """When given, `check(<entry_point>)` is called after `tests` (HumanEval)."""
    language: Literal["python"] = "python"
    timeout_s: Seconds = 6.0
    memory_mb: Megabytes = 1024


class StdioTest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    stdin: str = ""
    stdout: str


class CodeStdio(Params, frozen=True, kw_only=True):
    """A program against tests of stdin/stdout. Expected outputs never enter the sandbox."""

    code: str
    language: str = "python"
    tests: list[StdioTest]
    compile_timeout_s: Seconds = 10.0
    timeout_s: Seconds = 10.0
    """Wall seconds of each test's run."""
    memory_mb: Megabytes = 1024
    compare: Literal["lines", "exact", "tokens", "numeric"] = "lines"
    """lines: trailing blanks of lines and of the whole ignored; tokens: split at blanks; numeric: tokens, numbers equal
    to 1e-5 relative; exact: byte for byte."""
    stop_at_first_failure: bool = False
    score: Literal["fraction", "all"] = "all"


class MathVerify(Params, frozen=True, kw_only=True):
    """Model answer against gold by the math-verify library."""

    response: str
    gold: str
    timeout_s: Seconds = 5.0


class AnswerMatch(Params, frozen=True, kw_only=True):
    """Text equality after a named normalisation."""

    response: str
    gold: str | Annotated[list[str], msgspec.Meta(max_length=MOST_GOLDS)]
    mode: Literal["exact", "casefold", "squad", "number", "choice"] = "squad"
    extract: Annotated[str, msgspec.Meta(max_length=MOST_PATTERN)] | None = None
    """Regular expression with one group, run over `response`; the last match counts. None: the whole response."""


class PythonFunction(Params, frozen=True, kw_only=True):
    """A verl-style `compute_score(data_source, solution_str, ground_truth, extra_info)` module, run in the sandbox."""

    module: str
    """Python source that defines the function."""
    function: str = "compute_score"
    data_source: str = ""
    solution_str: str
    ground_truth: str | dict[str, Any] | list[Any] | float | int | None = None
    extra_info: dict[str, Any] | None = None
    timeout_s: Seconds = 10.0
    memory_mb: Megabytes = 1024


KINDS: dict[str, type[Params]] = {
    "noop": Noop,
    "sleep": Sleep,
    "code.run": CodeRun,
    "code.asserts": CodeAsserts,
    "code.stdio": CodeStdio,
    "math.verify": MathVerify,
    "answer.match": AnswerMatch,
    "python.function": PythonFunction,
}
"""Every action kind by name."""

FREE_FORM = ("ground_truth", "extra_info")
"""Parameters that may hold any JSON."""

NEEDS_NO_CORE = frozenset({"noop", "sleep"})
"""Kinds that only wait: they take a slot instead of a core."""


def needs_core(kind: str, params: Mapping[str, Any]) -> bool:
    """Does it run in a sandbox, which takes a core? Comparing answers does only where one has to be searched for."""
    return kind not in NEEDS_NO_CORE and (kind != "answer.match" or params.get("extract") is not None)


def default_units(kind: str) -> dict[str, int]:
    """What an action of this kind takes when nobody says: a core, or a slot where it only waits."""
    return {"slots": 1} if kind in NEEDS_NO_CORE else {"cores": 1}


def pool_of(units: Iterable[str], node_class: str) -> str:
    """The pool an action queues in: of cores where it takes any, else of its first resource, else of slots."""
    resources = list(units)
    return f"{'cores' if 'cores' in resources else next(iter(resources), 'slots')}@{node_class}"
