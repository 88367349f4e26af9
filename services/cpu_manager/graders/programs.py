"""Programs in any language of the node: compiled once, run any number of times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from services.cpu_manager.graders.compile_cache import CompileCache, Compiled, compile_key
from services.cpu_manager.graders.protocol import GradingContext
from services.cpu_manager.sandbox.languages import LanguageInfo, compile_job, run_job
from services.cpu_manager.sandbox.protocol import Job, Limits

DEFAULT_MEMORY_MB: Final = 1024
COMPILE_MEMORY_MB: Final = 2048
"""Least memory for a compiler, however little the program may use: g++ on the bits/stdc++ header takes 300 MB, a Go
link 600 MB, and a compiler killed for memory would look like the program's fault."""
COMPILE_DISK_BYTES: Final = 512 << 20
COMPILE_PIDS: Final = 256
"""Go and Java compilers start a thread for every few packages."""
ALIASES: Final[Mapping[str, str]] = {
    "py": "python",
    "python3": "python",
    "py3": "python",
    "js": "javascript",
    "node": "javascript",
    "nodejs": "javascript",
    "ts": "typescript",
    "c++": "cpp",
    "cxx": "cpp",
    "cc": "cpp",
    "golang": "go",
    "rs": "rust",
    "sh": "bash",
    "shell": "bash",
}
"""Alias -> canonical name. SandboxFusion calls JavaScript `nodejs`; model fences say `python3`, `js`, `c++`, `sh`."""


class LanguageMissingError(Exception):
    """The node has no toolchain for the language. The message is for the client."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program as it was sent."""

    language: str
    """As the client wrote it; aliases are allowed."""
    source: str
    files: Mapping[str, bytes] = {}


def limits_of(wall_s: float, cores: int, memory_mb: int | None) -> Limits:
    """Return limits of one run on `cores` exclusive cores. CPU time is bounded by what the wall time allows anyway."""
    return Limits(wall_s=wall_s, cpu_s=wall_s * cores + 1.0, memory_bytes=(memory_mb or DEFAULT_MEMORY_MB) << 20)


class Builder:
    """Prepares programs to run; compiles each source once (compile_cache)."""

    def __init__(self, languages: Mapping[str, LanguageInfo], cache: CompileCache) -> None:
        self._languages = languages
        self._cache = cache

    async def compile(
        self, program: Program, context: GradingContext, timeout_s: float, memory_mb: int | None
    ) -> tuple[Compiled | None, bool]:
        """Return the compiled program (None if interpreted), and True if this call spent time on compiling.

        Raises:
            LanguageMissingError: this node has no toolchain; nothing was run.
        """
        language = self._language(program)
        if not language.compiled:
            return None, False
        wall_s = min(timeout_s, context.timeout_s)
        limits = Limits(
            wall_s=wall_s,
            cpu_s=wall_s * len(context.cores) + 1.0,
            memory_bytes=max(memory_mb or 0, COMPILE_MEMORY_MB) << 20,
            disk_bytes=COMPILE_DISK_BYTES,
            pids=COMPILE_PIDS,
        )

        async def compile_now() -> Compiled:
            end = await context.sandbox.run(compile_job(language, program.source, program.files, limits), context.cores)
            return Compiled(end=msgspec.structs.replace(end, files={}), artifact=end.files, limits=limits)

        key = compile_key(context.tenant, language.name, program.source, program.files)
        return await self._cache.get(key, limits, compile_now)

    def run_job(
        self, program: Program, compiled: Compiled | None, stdin: bytes, fetch: tuple[str, ...], limits: Limits
    ) -> Job:
        """Return the job for one run of a program whose compile succeeded or was not needed."""
        runnable = program.source if compiled is None else compiled.artifact
        return run_job(self._language(program), runnable, stdin, program.files, limits, fetch=fetch)

    def _language(self, program: Program) -> LanguageInfo:
        found = self._languages.get(canonical(program.language))
        if found is None:
            raise LanguageMissingError(missing(program.language, self._languages))
        return found


def canonical(language: str) -> str:
    """Return the canonical name of a language, whatever its case or alias; an unknown name in lower case."""
    name = language.strip().lower()
    return ALIASES.get(name, name)


def missing(language: str, available: Iterable[str]) -> str:
    """Return the message for a language without a toolchain here; it must not look like a compile error."""
    have = ", ".join(sorted(available)) or "none"
    return f"This node has no toolchain for {language!r} (it has: {have}). Send the action to a node that has one."
