"""Tokenised inputs, and the queue in which they wait for a batch.

Laws:
  - a batch has inputs in the order in which they came;
  - a batch has at most `most_tokens` tokens with its padding, or is a single input;
  - `SequenceQueue.tokens` counts the inputs that are still wanted and in no batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.gpu_manager.torch_server.errors import RequestRejected

Result = list[float]


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One input of a model."""

    tokens: Sequence[int] = field(repr=False)
    types: Sequence[int] = field(default=(), repr=False)
    """0 for the tokens of a first text and 1 for those of a second; empty: all are 0."""
    start: int = 1
    """First token whose log-probability is computed."""

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(slots=True, eq=False)
class WaitingSequence:
    """One input whose result is awaited."""

    sequence: TokenSequence
    result: asyncio.Future[Result] = field(repr=False)
    is_queued: bool = True


class SequenceQueue:
    """Inputs that wait, first in, first out."""

    def __init__(self) -> None:
        self.tokens = 0
        self._queued: deque[WaitingSequence] = deque()

    def __bool__(self) -> bool:
        return self.tokens > 0

    def add(self, sequences: Iterable[TokenSequence]) -> list[WaitingSequence]:
        """Append inputs. None may be empty."""
        loop = asyncio.get_running_loop()
        entries = [WaitingSequence(sequence, loop.create_future()) for sequence in sequences]
        self._queued.extend(entries)
        self.tokens += sum(len(entry.sequence) for entry in entries)
        return entries

    def take(self, most_tokens: int) -> list[WaitingSequence]:
        """Remove and return the next batch. O(inputs of the batch, and those withdrawn before it)."""
        wanted = [entry for entry in self._queued if entry.is_queued]
        count = batch_size((len(entry.sequence) for entry in wanted), most_tokens)
        self._queued = deque(wanted[count:])
        for entry in wanted[:count]:
            self._leave(entry)
        return wanted[:count]

    def withdraw(self, entries: Iterable[WaitingSequence]) -> None:
        """Cancel what has no result yet. Inputs in a batch are computed all the same."""
        for entry in entries:
            self._leave(entry)
            entry.result.cancel()
            if not entry.result.cancelled():
                entry.result.exception()  # retrieved here, because the request raises only the first of its errors

    def reject(self, reason: RequestRejected) -> None:
        """End all inputs that wait."""
        for entry in self._queued:
            self._leave(entry)
            fail(entry, reason)
        self._queued.clear()

    def _leave(self, entry: WaitingSequence) -> None:
        if entry.is_queued:
            entry.is_queued = False
            self.tokens -= len(entry.sequence)


def fail(entry: WaitingSequence, reason: RequestRejected) -> None:
    """End one input without a result."""
    if not entry.result.done():
        entry.result.set_exception(RequestRejected(reason.status, reason.code, reason.message, reason.retry_s))


def batch_size(lengths: Iterable[int], most_tokens: int) -> int:
    """Return how many of the first inputs form a batch: at least one, if there is any. O(that number)."""
    longest = count = 0
    for length in lengths:
        longest = max(longest, length)
        if count and longest * (count + 1) > most_tokens:
            break
        count += 1
    return count
