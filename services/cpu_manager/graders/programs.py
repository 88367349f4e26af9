"""Programs in any language the node has: compile once, run as often as asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from services.cpu_manager.graders.compile_cache import CompileCache, Compiled, compile_key
from services.cpu_manager.graders.languages import canonical, missing
from services.cpu_manager.graders.protocol import Bench
from services.cpu_manager.sandbox.protocol import ExecJob, Job, Limits

DEFAULT_MEMORY_MB: Final = 1024
COMPILE_MEMORY_MB: Final = 2048
"""At least this much for a compiler, however little the program may use: g++ on the bits/stdc++ header takes 300 MB,
a Go link 600 MB, and a compiler killed for memory would look like the program's fault."""
COMPILE_DISK_BYTES: Final = 512 << 20
COMPILE_PIDS: Final = 256
"""Go and Java compilers start a thread for every few packages."""


class LanguageMissingError(Exception):
    """The node has no toolchain for the language; the message is the sentence for the client."""


class Toolchain(Protocol):
    """What a node can compile and run."""

    @property
    def languages(self) -> Collection[str]:
        """Canonical names of what is installed."""
        ...

    def compile_job(self, language: str, source: str, files: Mapping[str, bytes], limits: Limits) -> ExecJob | None:
        """The job that makes the artifact (the files it fetches); None where a language needs no compile."""
        ...

    def run_job(
        self,
        language: str,
        source: str,
        artifact: Mapping[str, bytes],
        *,
        stdin: bytes,
        files: Mapping[str, bytes],
        fetch: Sequence[str],
        limits: Limits,
    ) -> Job:
        """The job that runs the program once."""
        ...


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program as it was sent."""

    language: str
    """As the client wrote it; aliases are allowed."""
    source: str
    files: Mapping[str, bytes] = {}


def limits_of(wall_s: float, cores: int, memory_mb: int | None) -> Limits:
    """Limits of one run on `cores` exclusive cores: it cannot use more CPU seconds than the wall allows anyway."""
    return Limits(wall_s=wall_s, cpu_s=wall_s * cores + 1.0, memory_bytes=(memory_mb or DEFAULT_MEMORY_MB) << 20)


class Builder:
    """Makes programs ready to run, each source once (compile_cache)."""

    def __init__(self, toolchain: Toolchain, cache: CompileCache) -> None:
        self._toolchain = toolchain
        self._cache = cache

    async def compile(
        self, program: Program, bench: Bench, timeout_s: float, memory_mb: int | None
    ) -> tuple[Compiled | None, bool]:
        """The compiled program, None for an interpreted one; the flag says whether this call spent time on it.

        Raises:
            LanguageMissingError: this node cannot; nothing was run.
        """
        language = self._language(program)
        limits = Limits(
            wall_s=min(timeout_s, bench.timeout_s),
            cpu_s=min(timeout_s, bench.timeout_s) * len(bench.cores) + 1.0,
            memory_bytes=max(memory_mb or 0, COMPILE_MEMORY_MB) << 20,
            disk_bytes=COMPILE_DISK_BYTES,
            pids=COMPILE_PIDS,
        )
        job = self._toolchain.compile_job(language, program.source, program.files, limits)
        if job is None:
            return None, False

        async def compile_now() -> Compiled:
            end = await bench.sandbox.run(job, bench.cores)
            return Compiled(end=msgspec.structs.replace(end, files={}), artifact=end.files, limits=limits)

        key = compile_key(bench.tenant, language, program.source, program.files)
        return await self._cache.get(key, limits, compile_now)

    def run_job(
        self, program: Program, compiled: Compiled | None, stdin: bytes, fetch: Sequence[str], limits: Limits
    ) -> Job:
        """The job for one run of a program whose compile succeeded or was not needed."""
        return self._toolchain.run_job(
            self._language(program),
            program.source,
            compiled.artifact if compiled is not None else {},
            stdin=stdin,
            files=program.files,
            fetch=fetch,
            limits=limits,
        )

    def _language(self, program: Program) -> str:
        language = canonical(program.language)
        if language not in self._toolchain.languages:
            raise LanguageMissingError(missing(program.language, self._toolchain.languages))
        return language
