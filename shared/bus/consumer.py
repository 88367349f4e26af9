"""A member of a consumer group: at least once, acknowledged after the handler, failing entries moved aside.

For every stream but the journal. Handlers must be idempotent: after a crash before the ack the delivery is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from shared.bus.connection import TRANSIENT, command
from shared.messages.base import ENTRY, M, Topic
from shared.runtime import log
from shared.runtime.units import Seconds
from shared.runtime.validation import UNREADABLE

_log = log.get(__name__)


class Consumer(Generic[M]):
    """Reads a topic as one member of a group. Stale entries of dead members come first."""

    def __init__(
        self,
        redis: Redis,
        topic: Topic[M],
        *,
        group: str,
        member: str,
        max_attempts: int = 5,
        stale_s: Seconds = 60.0,
        block_s: Seconds = 1.0,
    ) -> None:
        """`stale_s`: an entry that a member got this long ago and has not acknowledged is claimed."""
        self._redis = redis
        self._topic = topic
        self._group = group
        self._member = member
        self._max_attempts = max_attempts
        self._stale_ms = round(stale_s * 1000)
        self._block_ms = round(block_s * 1000)
        self.stopping = False
        """Set it to end the loop at its next round."""

    async def run(self, handle: Callable[[M], Awaitable[None]]) -> None:
        """Deliver until stopped: this member's unacknowledged entries, then others' stale ones, then new ones."""
        pause = 0.05
        mine: str | None = "0"
        while not self.stopping:
            try:
                if mine == "0":
                    await self._ensure_group()
                mine = await self._turn(handle, mine)
                pause = 0.05
            except TRANSIENT as error:
                _log.warning("valkey_unavailable", what=f"consuming {self._topic.name}", error=str(error))
                mine = "0"
                await asyncio.sleep(pause)
                pause = min(1.0, pause * 2)

    async def _turn(self, handle: Callable[[M], Awaitable[None]], mine: str | None) -> str | None:
        """Run one round. After a (re)start `mine` iterates over this member's unacknowledged entries; None: done."""
        if mine is not None:
            rows = await self._read(mine, block=False)
            await self._handle_all(handle, rows)
            return rows[-1][0].decode() if rows else None
        claimed = await command(
            self._redis, "XAUTOCLAIM", self._topic.name, self._group, self._member, self._stale_ms, "0", "COUNT", 64
        )
        await self._handle_all(handle, claimed[1])
        await self._handle_all(handle, await self._read(">", block=True))
        return None

    async def _read(self, after: str, *, block: bool) -> list[Any]:
        reply = await command(
            self._redis, "XREADGROUP", "GROUP", self._group, self._member, "COUNT", 64,
            *(("BLOCK", self._block_ms) if block else ()), "STREAMS", self._topic.name, after,
        )  # fmt: skip
        return reply[0][1] if reply else []

    async def _ensure_group(self) -> None:
        try:
            await command(self._redis, "XGROUP", "CREATE", self._topic.name, self._group, "0", "MKSTREAM")
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def _handle_all(self, handle: Callable[[M], Awaitable[None]], rows: list[Any]) -> None:
        for entry, fields in rows:
            await self._handle(handle, entry.decode(), fields)

    async def _handle(self, handle: Callable[[M], Awaitable[None]], entry: str, fields: list[bytes] | None) -> None:
        if fields is None:  # trimmed while it was pending
            await self._ack(entry)
            return
        raw = dict(zip(fields[::2], fields[1::2], strict=True)).get(ENTRY, b"")
        try:
            message = self._topic.decode(raw)
        except UNREADABLE as error:
            await self._dead_letter(entry, raw, f"undecodable: {error}")
            return
        try:
            await handle(message)
        except TRANSIENT:
            raise
        except Exception as error:  # noqa: BLE001  # every error of a handler is counted and logged
            attempts = await self._attempts(entry)
            _log.exception("delivery_failed", topic=self._topic.name, entry=entry, attempt=attempts)
            if attempts >= self._max_attempts:
                await self._dead_letter(entry, raw, f"{type(error).__name__}: {error}")
            return
        await self._ack(entry)

    async def _attempts(self, entry: str) -> int:
        rows = await command(self._redis, "XPENDING", self._topic.name, self._group, entry, entry, 1)
        return int(rows[0][3]) if rows else 1

    async def _ack(self, entry: str) -> None:
        await command(self._redis, "XACK", self._topic.name, self._group, entry)

    async def _dead_letter(self, entry: str, raw: bytes, reason: str) -> None:
        """Move an entry to `<topic>.dead`, with the reason, for a person to examine."""
        _log.error("delivery_dead_lettered", topic=self._topic.name, entry=entry, reason=reason)
        dead = f"{self._topic.name}.dead"
        await command(self._redis, "XADD", dead, "MAXLEN", "~", 1000, "*", "m", raw, "entry", entry, "reason", reason)
        await self._ack(entry)
