"""Action kinds that the CPU manager executes, with their parameters; its runtimes and resources. Declarations only.

Every process may import this module (`shared.kinds.registry`), so it imports nothing of its service.

A request's `params` are its stage template's `params`, overridden by the request's own. Unknown fields are rejected at
submission, so that a misspelt limit is not ignored silently.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from shared.kinds.cuda import CudaCompile
from shared.kinds.spec import ArtifactUse, KindSpec, Params, Requirement, RuntimeSpec
from shared.messages.environments import Encoding, Path, Session, Variable
from shared.policy.resources.resource import ResourceSpec, Specs, least_load

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
MOST_FILES = 4096
MOST_FETCHED = 1024
MOST_GOLDS = 1024
FileName = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
"""Relative path inside of the working directory."""
MOST_PATTERN = 4096
"""Characters of a regular expression."""
Megabytes = Annotated[int, msgspec.Meta(ge=16, le=65536)]


class Noop(Params, frozen=True, kw_only=True):
    """Does nothing: measures the mesh itself. Needs no core."""

    echo: str = ""


class Sleep(Params, frozen=True, kw_only=True):
    """Hold a slot for a time without using a core. Stands for work that waits."""

    seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)]


class CodeRun(Params, frozen=True, kw_only=True):
    """Compile (if the language does) and run a program: SandboxFusion's `run_code` as an action."""

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
    artifact: FileName | None = None
    """File of the working directory that the program leaves for later stages of its action. With it, the action passes
    if the program succeeds and the file is there; otherwise later stages are not executed."""
    artifact_as: FileName | None = None
    """File of the working directory that holds the artifact of an earlier stage."""


class CodeAsserts(Params, frozen=True, kw_only=True):
    """HumanEval/MBPP style: `code`, then `tests` (asserts) in one interpreter. Passes if the last assert passes."""

    code: str
    tests: str
    entry_point: str | None = None
    """If given, `check(<entry_point>)` is called after `tests` (HumanEval)."""
    language: Literal["python"] = "python"
    timeout_s: Seconds = 6.0
    memory_mb: Megabytes = 1024


class StdioTest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run: what the program reads, and what it is to print."""

    stdin: str = ""
    stdout: str


class CodeStdio(Params, frozen=True, kw_only=True):
    """Run a program against stdin/stdout tests. Expected outputs never enter the sandbox."""

    code: str
    language: str = "python"
    tests: list[StdioTest]
    compile_timeout_s: Seconds = 10.0
    timeout_s: Seconds = 10.0
    """Wall seconds of each test's run."""
    memory_mb: Megabytes = 1024
    compare: Literal["lines", "exact", "tokens", "numeric"] = "lines"
    """lines: trailing blanks of lines and of the whole are ignored; tokens: split at blanks; numeric: tokens, numbers
    equal to 1e-5 relative; exact: byte for byte."""
    stop_at_first_failure: bool = False
    score: Literal["fraction", "all"] = "all"


class MathVerify(Params, frozen=True, kw_only=True):
    """Compare the model's answer with gold, by the math-verify library."""

    response: str
    gold: str
    timeout_s: Seconds = 5.0


class AnswerMatch(Params, frozen=True, kw_only=True):
    """Compare texts after a named normalisation."""

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


class EnvExec(Params, frozen=True, kw_only=True):
    """Run a command in a trajectory's environment, without a shell. Passes when it exits with 0."""

    argv: Annotated[list[str], msgspec.Meta(min_length=1, max_length=4096)]
    """A word may have `{dop}`: the number of granted cores."""
    cwd: str = ""
    """Empty: the environment's working directory."""
    env: dict[Variable, str] = {}
    stdin: str | None = None
    literal: bool = False
    """`{dop}` is ordinary text."""
    output_bytes: Annotated[int, msgspec.Meta(ge=0, le=8 << 20)] = 256 << 10
    """Bytes kept of stdout and of stderr, each: the beginning and the end. More is counted and dropped, with a flag."""


class EnvBash(Params, frozen=True, kw_only=True):
    """Run bash lines in a persistent shell. Variables, functions and the directory stay for the next action."""

    line: str
    """May have `{dop}`. `pytest` and `make` use the granted cores by themselves (docs/formulation.md)."""
    session: Session = "default"
    """Its shell, which starts with its first line."""
    literal: bool = False
    """`{dop}` is ordinary text."""
    output_bytes: Annotated[int, msgspec.Meta(ge=0, le=8 << 20)] = 256 << 10
    """Bytes kept of its output (stdout and stderr, in order): the beginning and the end."""


class EnvRead(Params, frozen=True, kw_only=True):
    """Read a file's content. More than the node's `output_bytes` is an error in its output; nothing is cut."""

    path: Path
    encoding: Encoding = "utf-8"


class EnvWrite(Params, frozen=True, kw_only=True):
    """Write a whole file. Missing parent directories are created."""

    path: Path
    content: str
    encoding: Encoding = "utf-8"
    mode: Annotated[int, msgspec.Meta(ge=0, le=0o777)] | None = None
    """None: the existing file's own mode, else 0o644."""


class EnvUpload(Params, frozen=True, kw_only=True):
    """Unpack a tar archive (plain or gzip, base64) into a directory, which is created if it is missing."""

    path: Path
    archive: str


class EnvDownload(Params, frozen=True, kw_only=True):
    """Read a file or directory as a gzipped tar archive, base64. More than the node's `output_bytes` is an error."""

    path: Path


class EnvList(Params, frozen=True, kw_only=True):
    """List a directory's entries: name, type, size, mode; sorted by name, at most `most`."""

    path: Path = "."
    most: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000


class EnvCloseSession(Params, frozen=True, kw_only=True):
    """End a persistent shell and its foreground and background processes."""

    session: Session = "default"


ONLY_LOOKS: Final = frozenset({"env.read", "env.download", "env.list"})
"""Environment kinds that change nothing, so that a second attempt is harmless. Their output is sent whole or not."""

EXECUTOR: Final = "cpu_manager"
CORES: Final = "cores"
SLOTS: Final = "slots"
"""Units of work that only waits. They take no core."""
MEMORY: Final = "memory_mb"
"""Memory of environments, MB."""
STARTS: Final = "starts"
"""Environments that a node creates at once, apart from cores."""

RESOURCES: Final[Specs] = {
    MEMORY: ResourceSpec("environment", shortage="the memory for environments is taken", score=least_load),
    STARTS: ResourceSpec(
        "creation", unlimited=True, shortage="the limit of concurrent environment starts is reached", score=least_load
    ),
}
"""Resources that are no plain counts held by actions."""

_HOLDS: Final[dict[str, str | int]] = {MEMORY: "memory_mb", STARTS: 1}
RUNTIMES: Final = (RuntimeSpec("local", _HOLDS), RuntimeSpec("docker", _HOLDS, images=True))

_SANDBOX: Final = Requirement(CORES, "runs in a sandbox and needs a core")
_ENVIRONMENT: Final = Requirement(CORES, "needs a core")


def _waiting(name: str, params: type[Params]) -> KindSpec:
    """Return a kind that only waits."""
    return KindSpec(name, params, EXECUTOR, {SLOTS: 1}, (CORES, SLOTS))


def _program(
    name: str,
    params: type[Params],
    requirement: Requirement = _SANDBOX,
    free_form: tuple[str, ...] = (),
    makes: ArtifactUse | None = None,
    takes: ArtifactUse | None = None,
) -> KindSpec:
    """Return a kind that runs a program in a sandbox. A program leaves nothing there, so it is repeatable."""
    return KindSpec(
        name,
        params,
        EXECUTOR,
        {CORES: 1},
        (CORES, SLOTS),
        requirement=requirement,
        free_form=free_form,
        makes_artifact=makes,
        takes_artifact=takes,
    )


def _acting(name: str, params: type[Params]) -> KindSpec:
    """Return a kind that acts in a trajectory's environment."""
    repeatable = name in ONLY_LOOKS
    return KindSpec(name, params, EXECUTOR, {CORES: 1}, (CORES, SLOTS), repeatable, True, _ENVIRONMENT)


KINDS: Final = (
    _waiting("noop", Noop),
    _waiting("sleep", Sleep),
    _program("code.run", CodeRun, makes=ArtifactUse("artifact"), takes=ArtifactUse("artifact_as")),
    _program("code.asserts", CodeAsserts),
    _program("code.stdio", CodeStdio),
    _program("math.verify", MathVerify),
    _program("answer.match", AnswerMatch, Requirement(CORES, _SANDBOX.why, "extract")),
    _program("python.function", PythonFunction, free_form=("ground_truth", "extra_info")),
    _program("cuda.compile", CudaCompile, makes=ArtifactUse()),
    _acting("env.exec", EnvExec),
    _acting("env.bash", EnvBash),
    _acting("env.read", EnvRead),
    _acting("env.write", EnvWrite),
    _acting("env.upload", EnvUpload),
    _acting("env.download", EnvDownload),
    _acting("env.list", EnvList),
    _acting("env.close_session", EnvCloseSession),
)
"""Kinds that this service executes."""

PLAIN: Final = {spec.name: spec for spec in KINDS if not spec.environment}
IN_ENVIRONMENTS: Final = {spec.name: spec for spec in KINDS if spec.environment}
