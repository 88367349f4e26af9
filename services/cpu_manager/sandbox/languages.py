"""Languages that a node can run: their compile and run commands, and the installed versions.

Compiled languages take two jobs: the first job's fetched files are the artifact that the second job runs. An artifact
is plain bytes, so it can be stored and shared. Interpreted languages take only the second job.
"""

from __future__ import annotations

import functools
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from services.cpu_manager.sandbox.protocol import ExecJob, Job, Limits, PythonJob
from services.cpu_manager.sandbox.toolchain import Toolchain, detect

_VERSION_S: Final = 20.0
_PACK_CLASSES: Final = "mkdir -p classes && javac -encoding UTF-8 -d classes Main.java && jar cf main.jar -C classes ."


@dataclass(frozen=True, slots=True)
class LanguageInfo:
    """One language as installed on this node."""

    name: str
    version: str
    source_name: str
    """Name of the source file in the private directory."""
    compile_argv: tuple[str, ...]
    """Empty for interpreted languages."""
    run_argv: tuple[str, ...]
    artifact: str = ""
    """The file that the compiler writes and that is then run."""
    env: tuple[tuple[str, str], ...] = ()

    @property
    def compiled(self) -> bool:
        return bool(self.compile_argv)


#: What each needs on the node: the programs, and the option with which the first one prints its version.
_KNOWN: Final[tuple[tuple[LanguageInfo, tuple[str, ...], str], ...]] = (
    (LanguageInfo("bash", "", "main.sh", (), ("bash", "main.sh")), ("bash",), "--version"),
    (
        LanguageInfo(
            "c", "", "main.c", ("gcc", "-O2", "-std=gnu17", "main.c", "-o", "main", "-lm"), ("./main",), "main"
        ),
        ("gcc",),
        "--version",
    ),
    (
        LanguageInfo(
            "cpp", "", "main.cpp", ("g++", "-O2", "-std=c++17", "main.cpp", "-o", "main"), ("./main",), "main"
        ),
        ("g++",),
        "--version",
    ),
    (LanguageInfo("javascript", "", "main.js", (), ("node", "main.js")), ("node",), "--version"),
    (
        LanguageInfo(
            "java", "", "Main.java", ("bash", "-c", _PACK_CLASSES), ("java", "-cp", "main.jar", "Main"), "main.jar"
        ),
        ("javac", "java", "jar"),
        "-version",
    ),
    (
        LanguageInfo(
            "go",
            "",
            "main.go",
            ("go", "build", "-o", "main", "main.go"),
            ("./main",),
            "main",
            (("GOTOOLCHAIN", "local"),),
        ),
        ("go",),
        "version",
    ),
    (
        LanguageInfo(
            "rust", "", "main.rs", ("rustc", "-O", "--edition=2021", "main.rs", "-o", "main"), ("./main",), "main"
        ),
        ("rustc", "cc"),
        "--version",
    ),
)


def languages(tools: Toolchain | None = None) -> dict[str, LanguageInfo]:
    """Return the languages that a sandbox with this toolchain can use, by name; default: the node's whole toolchain.

    Runs each compiler for its version once a process: half a second in total.
    """
    return _installed(dict((tools or detect()).environment)["PATH"])


@functools.cache
def _installed(search: str) -> dict[str, LanguageInfo]:
    found = {"python": LanguageInfo("python", platform.python_version(), "main.py", (), ("python3", "main.py"))}
    for info, programs, question in _KNOWN:
        places = [shutil.which(program, path=search) for program in programs]
        if all(places) and (version := _version(str(places[0]), question)):
            found[info.name] = replace(info, version=version)
    return found


def _version(program: str, question: str) -> str:
    try:
        answer = subprocess.run([program, question], capture_output=True, text=True, timeout=_VERSION_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = (answer.stdout or answer.stderr).strip().splitlines()
    return lines[0] if lines else ""


def compile_job(language: LanguageInfo, source: str, files: Mapping[str, bytes], limits: Limits) -> ExecJob:
    """Return the job that compiles a source into an artifact. `run_job` takes its `Exit.files`.

    Raises ValueError for a language that is not compiled.
    """
    if not language.compiled:
        raise ValueError(f"{language.name} is not compiled; give its source to run_job")
    return ExecJob(
        argv=language.compile_argv,
        files={**files, language.source_name: _encoded(source)},
        env=dict(language.env),
        fetch=(language.artifact,),
        limits=limits,
    )


def run_job(
    language: LanguageInfo,
    program: str | Mapping[str, bytes],
    stdin: bytes,
    files: Mapping[str, bytes],
    limits: Limits,
    *,
    fetch: tuple[str, ...] = (),
) -> Job:
    """Return the job that runs an interpreted source, or the artifact (`Exit.files`) of a compiled one.

    Raises ValueError if it gets a source and needs an artifact, or the reverse.
    """
    if isinstance(program, str) == language.compiled:
        wanted = "the artifact of its compile job" if language.compiled else "its source"
        raise ValueError(f"{language.name} is run from {wanted}")
    if language.name == "python" and isinstance(program, str):
        return PythonJob(source=program, stdin=stdin, files=dict(files), fetch=fetch, limits=limits)
    sources = {language.source_name: _encoded(program)} if isinstance(program, str) else dict(program)
    return ExecJob(
        argv=_run_argv(language, limits),
        stdin=stdin,
        files={**files, **sources},
        executable=(language.artifact,) if language.artifact else (),
        env=dict(language.env),
        fetch=fetch,
        limits=limits,
    )


def _run_argv(language: LanguageInfo, limits: Limits) -> tuple[str, ...]:
    """Return the run command. The JVM gets explicit sizes; its defaults follow the host, not the limits."""
    if language.name != "java":
        return language.run_argv
    heap = max(limits.memory_bytes * 7 // 10 >> 20, 16)
    flags = (f"-Xmx{heap}m", "-Xss64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
    return (language.run_argv[0], *flags, *language.run_argv[1:])


def _encoded(source: str) -> bytes:
    return source.encode(errors="surrogatepass")
