"""`code.run`: compiles if the language needs it, runs, and returns the result in SandboxFusion's format.

The output's fields are those of SandboxFusion's `POST /run_code` answer (its `RunCodeResponse`), plus `cpu_time`,
`peak_memory` and `error_class`; its clients ignore unknown fields.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from services.cpu_manager.graders.compile_cache import Compiled
from services.cpu_manager.graders.programs import Builder, LanguageMissingError, Program, limits_of
from services.cpu_manager.graders.protocol import GradingContext, Verdict
from services.cpu_manager.graders.verdicts import ERROR_CLASSES, LOST, TIMED_OUT, charged, lost, refused
from services.cpu_manager.kinds import CodeRun
from services.cpu_manager.sandbox.protocol import Exit, names_a_file
from shared.policy.model.results import Evidence

SKIPPED_NAME: Final = "IGNORE_THIS_FILE"
"""SandboxFusion skips uploaded files whose name contains this; its data sets use it."""
KILLED: Final = -9
"""Return code of a program that was killed for memory or output, as a shell's parent would see SIGKILL."""


class CodeRunGrader:
    """Runs a program once. It does not judge: `passed` stays None, unless the program is to leave an artifact."""

    kind = "code.run"
    params = CodeRun
    evidence: Evidence = ""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder

    async def grade(self, params: CodeRun, context: GradingContext) -> Verdict:
        """Compile and run within the stage's limit.

        Raises:
            ValueError: a file's content is not base64, or its path leaves the working directory.
        """
        files = decoded_files(params.files)
        _check_names(params)
        if params.artifact_as is not None:
            files[params.artifact_as] = await context.artifact()
        program = Program(language=params.language, source=params.code, files=files)
        try:
            compiled, fresh = await self._builder.compile(program, context, params.compile_timeout_s, params.memory_mb)
        except LanguageMissingError as missing:
            return refused(str(missing))
        if compiled is not None and compiled.end.ended_by in LOST:
            return lost(compiled.end)
        if compiled is not None and not compiled.succeeded:
            failed = _verdict(compiled, None, spent=[compiled.end] if fresh else [])
            return failed if params.artifact is None else _with_artifact(failed, None)
        left_s = context.timeout_s - (compiled.end.wall_s if compiled is not None and fresh else 0.0)
        limits = limits_of(max(0.1, min(params.run_timeout_s, left_s)), len(context.cores), params.memory_mb)
        stdin = (params.stdin or "").encode("utf-8", "surrogatepass")
        fetch = tuple(params.fetch_files) + (() if params.artifact is None else (params.artifact,))
        job = self._builder.run_job(program, compiled, stdin, tuple(dict.fromkeys(fetch)), limits)
        end = await context.sandbox.run(job, context.cores)
        if end.ended_by in LOST:
            return lost(end)
        left = end.files.get(params.artifact) if params.artifact is not None else None
        if params.artifact is not None and params.artifact not in params.fetch_files:
            others = {path: data for path, data in end.files.items() if path != params.artifact}
            end = msgspec.structs.replace(end, files=others)
        verdict = _verdict(compiled, end, spent=[compiled.end, end] if compiled is not None and fresh else [end])
        return verdict if params.artifact is None else _with_artifact(verdict, left)


def _check_names(params: CodeRun) -> None:
    for name in (params.artifact, params.artifact_as):
        if name is not None and not names_a_file(name):
            raise ValueError(f"artifact {name[:100]!r}: use a relative path inside the working directory")


def _with_artifact(verdict: Verdict, left: bytes | None) -> Verdict:
    """Return the verdict of a program that was to leave an artifact: it passes if it has."""
    if verdict.status != "ok":
        return verdict
    if verdict.output["status"] != "Success":
        return msgspec.structs.replace(verdict, passed=False)
    if left is None:
        return msgspec.structs.replace(verdict, passed=False, reason="The program has left no artifact.")
    return msgspec.structs.replace(verdict, passed=True, artifact=left)


def decoded_files(files: Mapping[str, str | None]) -> dict[str, bytes]:
    """Return uploaded files by relative path, without null contents and names that contain SKIPPED_NAME.

    Raises:
        ValueError: not base64 (white space is ignored), or a path that is absolute or leaves the working directory.
    """
    decoded = {}
    for path, content in files.items():
        if content is None or SKIPPED_NAME in path:
            continue
        if not names_a_file(path):
            raise ValueError(f"file {path[:100]!r}: use a relative path inside the working directory")
        try:
            decoded[path] = base64.b64decode("".join(content.split()), validate=True)
        except ValueError as error:
            raise ValueError(f"file {path!r}: the content is not base64 ({error})") from error
    return decoded


def _verdict(compiled: Compiled | None, end: Exit | None, *, spent: list[Exit]) -> Verdict:
    last = end if end is not None or compiled is None else compiled.end
    assert last is not None, "a program was compiled or run"
    succeeded = end is not None and end.ended_by == "exit" and end.exit_code == 0
    verdict = charged(
        Verdict(status="timeout" if last.ended_by in TIMED_OUT else "ok", reason="" if succeeded else last.detail),
        spent,
    )
    output: dict[str, Any] = {
        "status": "Success" if succeeded else "Failed",
        "message": "",
        "compile_result": command_result(compiled.end) if compiled is not None else None,
        "run_result": command_result(end) if end is not None else None,
        "files": {path: base64.b64encode(data).decode() for path, data in end.files.items()} if end is not None else {},
        "cpu_time": verdict.cpu_s,
        "peak_memory": verdict.peak_memory_bytes,
        "error_class": None if succeeded else _error_class(last, compiling=end is None),
    }
    return msgspec.structs.replace(verdict, output=output)


def command_result(end: Exit) -> dict[str, Any]:
    """Return one command's result as SandboxFusion does: `return_code` is null after a timeout, negative after a
    signal.
    """
    timed_out = end.ended_by in TIMED_OUT
    return {
        "status": "TimeLimitExceeded" if timed_out else "Finished",
        "execution_time": end.wall_s,
        "return_code": None if timed_out else _return_code(end),
        "stdout": decoded_output(end.stdout, truncated=end.stdout_truncated),
        "stderr": decoded_output(end.stderr, truncated=end.stderr_truncated),
    }


def decoded_output(data: bytes, *, truncated: bool) -> str:
    """Return output as text. Invalid UTF-8 gives `[DecodeError] ...` as in SandboxFusion, unless our cut broke it."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if truncated and error.start >= len(data) - 3 and error.reason == "unexpected end of data":
            return data[: error.start].decode()
        return f"[DecodeError] {error}"


def _return_code(end: Exit) -> int:
    if end.ended_by == "exit" and end.exit_code is not None:
        return end.exit_code
    return -end.signal if end.signal is not None else KILLED


def _error_class(end: Exit, *, compiling: bool) -> str:
    return ERROR_CLASSES.get(end.ended_by, "CompileError" if compiling else "NonZeroExit")
