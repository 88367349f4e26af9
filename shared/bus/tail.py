"""Reads of streams from a given position: without group, ack or `$`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic

from redis.asyncio import Redis

from shared.bus.connection import TRANSIENT, command
from shared.messages.actions import DECIDED_FIELD, INDEX_FIELD, OLDER_INDEX_FIELD, PRIORITY_FIELD
from shared.messages.base import ENTRY, M, Topic
from shared.runtime import log
from shared.runtime.units import Epoch, Seconds
from shared.runtime.validation import UNREADABLE

_log = log.get(__name__)

MOST_PAUSE_S: Final[Seconds] = 0.25
"""Longest pause between two tries while Valkey is away. Until the next read, a leader decides with what it has read."""


@dataclass(frozen=True, slots=True)
class Entry(Generic[M]):
    """One stream entry, decoded."""

    topic: str
    id: str
    message: M
    index: int
    """The journal's index field; -1 elsewhere."""
    priority: float = 0.0
    """Priority of the trajectory when its action was accepted; 0 elsewhere."""

    @property
    def at(self) -> Seconds:
        """Time at which it was written: Unix seconds, Valkey's clock."""
        return int(self.id.partition("-")[0]) / 1000


class Tail:
    """Follows one or more streams from given ids, in one blocking XREAD.

    A message that cannot be decoded is logged. In the journal the topic makes an `UnreadableEntry` of it, which gets an
    answer. On a bounded wake-up stream it is skipped, because nothing depends on it.
    """

    def __init__(
        self,
        redis: Redis,
        start: dict[Topic[Any], str],
        *,
        count: int = 512,
        block_s: Seconds = 1.0,
        decided_by: Epoch | None = None,
    ) -> None:
        """`start`: topic -> last known id ("0" reads all that is kept). No other reader may use `redis`.

        `decided_by`: the term of a leader. Entries that it has journaled after its decision are left out.
        """
        self._decided_by = None if decided_by is None else str(decided_by).encode()
        self._redis = redis
        self._topics = {topic.name.encode(): topic for topic in start}
        self._last = {topic.name.encode(): last for topic, last in start.items()}
        self._count = count
        self._block_ms = round(block_s * 1000)
        self.bytes = 0
        """Total length of the messages read."""
        self._cut: set[bytes] = set()
        """Streams of which the last read has returned as many entries as it may."""
        self.away = False
        """The last read has failed: entries may have been written that were not read."""
        self.returned: Callable[[Seconds], None] = lambda _: None
        """Called with how long reads have failed, before what was read since."""
        self.ignores: Callable[[Entry[Any]], bool] = lambda _: False
        """Entries for which it returns true are left out."""
        self.stopping = False
        """Set it to end the loop at its next round. redis-py may swallow a cancel during a delivery."""

    def last(self, topic: Topic[Any]) -> str:
        """Return the id of the last entry that was returned."""
        return self._last[topic.name.encode()]

    def is_drained(self, topic: Topic[Any]) -> bool:
        """Return whether all entries of a topic that were published before the last read have been returned."""
        return topic.name.encode() not in self._cut

    async def read(self, *, block: bool = True) -> list[Entry[Any]]:
        """Return the next entries, by stream in the order of `start`; [] if none arrives within `block_s`."""
        reply = await command(
            self._redis, "XREAD", "COUNT", self._count, *(("BLOCK", self._block_ms) if block else ()),
            "STREAMS", *self._last.keys(), *self._last.values(),
        )  # fmt: skip
        entries: list[Entry[Any]] = []
        self._cut = {name for name, rows in reply or () if len(rows) >= self._count}
        for name, rows in reply or ():
            topic = self._topics[name]
            for entry_id, fields in rows:
                if fields[-1] == self._decided_by and fields[-2] == DECIDED_FIELD:
                    continue
                entry = self._decode(topic, entry_id.decode(), fields)
                if entry is not None and not self.ignores(entry):
                    entries.append(entry)
            self._last[name] = rows[-1][0].decode()
        return entries

    def _decode(self, topic: Topic[Any], entry_id: str, fields: list[bytes]) -> Entry[Any] | None:
        named = dict(zip(fields[::2], fields[1::2], strict=True))
        try:
            raw = named[ENTRY]
            self.bytes += len(raw)
            message = topic.decode(raw)
        except (KeyError, *UNREADABLE) as error:
            why = "it has no message" if isinstance(error, KeyError) else str(error)
            _log.error("entry_unreadable", stream=topic.name, entry=entry_id, error=why)
            if topic.unreadable is None:
                return None
            message = topic.unreadable(named, why)
        index = int(named.get(INDEX_FIELD) or named.get(OLDER_INDEX_FIELD) or b"-1")
        return Entry(topic.name, entry_id, message, index, float(named.get(PRIORITY_FIELD, 0.0)))

    async def batches(self, blocks: Callable[[], bool] = lambda: True) -> AsyncIterator[list[Entry[Any]]]:
        """Yield batches of entries until stopped, also across restarts of Valkey; [] after `block_s` without any.

        `blocks`: False if the reader has entries to handle. Then [] comes at once if there are no more.
        """
        pause, away_s = 0.05, 0.0
        while not self.stopping:
            try:
                entries = await self.read(block=blocks())
            except TRANSIENT as error:
                if not self.away:
                    self.away, away_s = True, time.monotonic()
                _log.warning("valkey_unavailable", what="reading", error=str(error))
                await asyncio.sleep(pause)
                pause = min(MOST_PAUSE_S, pause * 2)
                continue
            pause = 0.05
            if self.away:
                self.away = False
                self.returned(time.monotonic() - away_s)
            yield entries
            if entries:
                await asyncio.sleep(0)  # what they have begun leaves before the next read
