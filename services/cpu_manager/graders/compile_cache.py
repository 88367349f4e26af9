"""One compile per source: the node's cache of compile results.

Trainers post the same program once per test case, so the same source arrives many times at once. The first asker
compiles on its own cores; askers that come meanwhile wait for its result. When the first is cancelled its compile dies
with it, because its cores are taken back, and one of those who wait starts again on its own. So a result is never
lost to a stranger's cancellation, and nothing ever runs on cores that were given back.
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
"""A GRPO batch of 128 prompts x 4 distinct programs; more only costs a recompile."""
MAX_BYTES: Final = 256 << 20
"""A Go binary is 2 MB, a C++ one 20-200 KB."""


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a compile and what it made."""

    end: Exit
    """With its `files` emptied: they are the artifact."""
    artifact: Mapping[str, bytes]
    """Relative path -> content of what the compiler wrote; empty when it failed."""
    limits: Limits
    """What the compile was allowed."""

    @property
    def succeeded(self) -> bool:
        """Whether there is something to run."""
        return self.end.ended_by == "exit" and self.end.exit_code == 0

    @property
    def weight(self) -> int:
        """Bytes this entry holds."""
        return sum(map(len, self.artifact.values())) + len(self.end.stdout) + len(self.end.stderr)

    def answers(self, limits: Limits) -> bool:
        """Whether it answers an asker with these limits: one who would allow more may see another end."""
        if self.end.ended_by in ("exit", "signal"):
            return True
        return limits.wall_s <= self.limits.wall_s and limits.memory_bytes <= self.limits.memory_bytes


def compile_key(tenant: str, language: str, source: str, files: Mapping[str, bytes]) -> bytes:
    """Digest of all that a compile's result depends on. Tenants never share: a hit would tell who sent what.

    Flags follow from the language, so they need no part of their own. O(bytes).
    """
    digest = hashlib.blake2b(digest_size=20)
    for part in (tenant.encode(), language.encode(), source.encode("utf-8", "surrogatepass")):
        digest.update(b"%d:" % len(part) + part)
    for path, content in sorted(files.items()):
        name = path.encode("utf-8", "surrogatepass")
        digest.update(b"%d:%b%d:" % (len(name), name, len(content)) + content)
    return digest.digest()


class CompileCache:
    """Least recently used first out, bounded in entries and in bytes. For one event loop."""

    def __init__(self, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._kept: OrderedDict[bytes, Compiled] = OrderedDict()
        self._bytes = 0
        self._flights: dict[bytes, asyncio.Future[Compiled | None]] = {}

    async def get(
        self, key: bytes, limits: Limits, compile_now: Callable[[], Awaitable[Compiled]]
    ) -> tuple[Compiled, bool]:
        """The result under `key`, compiled now if nobody has it; the flag says whether this call did the work.

        Failures of the program are kept like successes; a `lost` compile is handed to those who wait but not kept.
        """
        while True:
            kept = self._look_up(key, limits)
            if kept is not None:
                return kept, False
            flight = self._flights.get(key)
            if flight is None:
                return await self._lead(key, compile_now), True
            landed = await asyncio.shield(flight)
            if landed is not None and landed.answers(limits):
                return landed, False

    def _look_up(self, key: bytes, limits: Limits) -> Compiled | None:
        kept = self._kept.get(key)
        if kept is None or not kept.answers(limits):
            return None
        self._kept.move_to_end(key)
        return kept

    async def _lead(self, key: bytes, compile_now: Callable[[], Awaitable[Compiled]]) -> Compiled:
        flight: asyncio.Future[Compiled | None] = asyncio.get_running_loop().create_future()
        self._flights[key] = flight
        compiled: Compiled | None = None
        try:
            compiled = await compile_now()
            if compiled.end.ended_by not in LOST:
                self._keep(key, compiled)
            return compiled
        finally:
            del self._flights[key]
            flight.set_result(compiled)  # None: this asker is gone; the first of those who wait leads next

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
        """Assert the bounds and the ledger; tests call it after every step."""
        assert self._bytes == sum(compiled.weight for compiled in self._kept.values())
        assert self._bytes <= self._max_bytes
        assert len(self._kept) <= self._max_entries
