"""The node's cache of compile results: each source is compiled once.

Trainers post the same program once per test case, so the same source arrives many times at once. The first request
compiles on its own cores; later ones wait for its result. If the first is cancelled, its compile is killed, because its
cores are taken back, and one of the waiting requests starts again on its own cores. So another request's cancellation
loses no result, and nothing runs on released cores.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from services.cpu_manager.graders.verdicts import LOST
from services.cpu_manager.sandbox.protocol import Exit, Limits

MAX_ENTRIES: Final = 512
"""A GRPO batch of 128 prompts x 4 distinct programs. More programs only cost a recompile."""
MAX_BYTES: Final = 256 << 20
"""A Go binary is 2 MB, a C++ one 20-200 KB."""


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a compile and its artifact."""

    end: Exit
    """Its `files` are emptied: they are the artifact."""
    artifact: Mapping[str, bytes]
    """Relative path -> content of what the compiler wrote; empty if it failed."""
    limits: Limits
    """Limits of the compile."""

    @property
    def succeeded(self) -> bool:
        """True if there is something to run."""
        return self.end.ended_by == "exit" and self.end.exit_code == 0

    @property
    def weight(self) -> int:
        """Bytes of this entry."""
        return sum(map(len, self.artifact.values())) + len(self.end.stdout) + len(self.end.stderr)

    def answers(self, limits: Limits) -> bool:
        """Return True if the result holds for these limits too. With larger limits the compile may end differently."""
        if self.end.ended_by in ("exit", "signal"):
            return True
        return limits.wall_s <= self.limits.wall_s and limits.memory_bytes <= self.limits.memory_bytes


def compile_key(tenant: str, language: str, source: str, files: Mapping[str, bytes]) -> bytes:
    """Return a digest of everything that a compile's result depends on.

    Tenants share no entries, because a hit would reveal what another tenant sent. Flags follow from the language, so
    they are not included. O(bytes).
    """
    digest = hashlib.blake2b(digest_size=20)
    for part in (tenant.encode(), language.encode(), source.encode("utf-8", "surrogatepass")):
        digest.update(b"%d:" % len(part) + part)
    for path, content in sorted(files.items()):
        name = path.encode("utf-8", "surrogatepass")
        digest.update(b"%d:%b%d:" % (len(name), name, len(content)) + content)
    return digest.digest()


class CompileCache:
    """A cache bounded in entries and in bytes; the least recently used is evicted first. For one event loop."""

    def __init__(self, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._kept: OrderedDict[bytes, Compiled] = OrderedDict()
        self._bytes = 0
        self._compiling: dict[bytes, asyncio.Future[Compiled | None]] = {}

    async def get(
        self, key: bytes, limits: Limits, compile_now: Callable[[], Awaitable[Compiled]]
    ) -> tuple[Compiled, bool]:
        """Return the result under `key`, compiled now if there is none, and True if this call compiled it.

        Failures of the program are kept like successes. A `lost` compile is returned to waiting calls but not kept.
        """
        while True:
            kept = self._look_up(key, limits)
            if kept is not None:
                return kept, False
            future = self._compiling.get(key)
            if future is None:
                return await self._compile(key, compile_now), True
            compiled = await asyncio.shield(future)
            if compiled is not None and compiled.answers(limits):
                return compiled, False

    def _look_up(self, key: bytes, limits: Limits) -> Compiled | None:
        kept = self._kept.get(key)
        if kept is None or not kept.answers(limits):
            return None
        self._kept.move_to_end(key)
        return kept

    async def _compile(self, key: bytes, compile_now: Callable[[], Awaitable[Compiled]]) -> Compiled:
        future: asyncio.Future[Compiled | None] = asyncio.get_running_loop().create_future()
        self._compiling[key] = future
        compiled: Compiled | None = None
        try:
            compiled = await compile_now()
            if compiled.end.ended_by not in LOST:
                self._keep(key, compiled)
            return compiled
        finally:
            del self._compiling[key]
            future.set_result(compiled)  # None: this call was cancelled; the first of the waiting ones compiles next

    def _keep(self, key: bytes, compiled: Compiled) -> None:
        replaced = self._kept.pop(key, None)
        self._bytes -= replaced.weight if replaced is not None else 0
        if compiled.weight > self._max_bytes:
            return
        self._kept[key] = compiled
        self._bytes += compiled.weight
        while len(self._kept) > self._max_entries or self._bytes > self._max_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.weight

    def check(self) -> None:
        """Assert the bounds and the byte count; tests call it after every step."""
        assert self._bytes == sum(compiled.weight for compiled in self._kept.values())
        assert self._bytes <= self._max_bytes
        assert len(self._kept) <= self._max_entries
