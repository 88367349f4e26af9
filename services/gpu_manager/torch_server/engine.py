"""Residency of the model, and its requests in batches.

Laws:
  - forward passes, evictions and restores run one after another in one thread, so none sees weights half copied;
  - a request is accepted only while the model is resident, and the model is evicted only while no request runs;
  - the tokens that wait are bounded.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Literal, Protocol

from services.gpu_manager.torch_server.errors import InsufficientMemory, RequestRejected
from services.gpu_manager.torch_server.sequences import Result, SequenceQueue, TokenSequence, WaitingSequence, fail
from shared.runtime.units import Seconds

Residency = Literal["resident", "evicting", "asleep1", "restoring"]
FIRST_RATE: Final = 1000.0
"""Tokens a second, before a batch was measured."""
SMOOTHING: Final = 0.2
"""Weight of the last batch in the measured rate."""


class DeviceCopy(Protocol):
    """Weights of a model: `weights.Weights`."""

    @property
    def is_resident(self) -> bool: ...

    def evict(self) -> None: ...

    def restore(self) -> None: ...


Forward = Callable[[Sequence[TokenSequence]], list[Result]]


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Bounds of one engine."""

    batch_tokens: int
    """Tokens of one batch, with padding."""
    queued_tokens: int
    """Tokens that wait. A single request may have more while none waits."""


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request that is accepted and not answered."""

    is_aborted: bool = False


class Engine:
    """One model, for the event loop."""

    def __init__(self, weights: DeviceCopy, forward: Forward, limits: EngineLimits) -> None:
        self.residency: Residency = "resident" if weights.is_resident else "asleep1"
        self.failure = ""
        """Reason why the model cannot compute any more; empty while it can."""
        self.took_s: dict[str, Seconds] = {}
        """Seconds of the last eviction and the last restore."""
        self._weights = weights
        self._forward = forward
        self._limits = limits
        self._requests: set[RunningRequest] = set()
        self._queue = SequenceQueue()
        self._batch: list[WaitingSequence] = []
        self._rate = FIRST_RATE
        self._thread = ThreadPoolExecutor(1, "model")
        self._change = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_batches = False

    @property
    def running(self) -> int:
        """Requests that are accepted and not answered."""
        return len(self._requests)

    @asynccontextmanager
    async def accepted(self) -> AsyncIterator[RunningRequest]:
        """Accept a request for as long as the context lasts.

        Raises:
            RequestRejected: the model is not resident, or cannot compute any more.
        """
        if self.failure:
            raise RequestRejected(500, "broken", f"{self.failure}; start this server again")
        if self.residency != "resident":
            raise RequestRejected(409, "evicted", f"the model is {self.residency}; restore it first (POST /restore)")
        request = RunningRequest()
        self._requests.add(request)
        try:
            yield request
        finally:
            self._requests.discard(request)

    async def results(self, request: RunningRequest, sequences: Sequence[TokenSequence]) -> list[Result]:
        """Return the result of each sequence. A cancelled call withdraws what is in no batch yet.

        Args:
            request: of `accepted`, whose context lasts.
        Raises:
            RequestRejected: too many tokens wait, the device has no memory for a batch, or the request is aborted.
        """
        if request.is_aborted:
            raise aborted()
        waiting, tokens = self._queue.tokens, sum(len(sequence) for sequence in sequences)
        if waiting and waiting + tokens > self._limits.queued_tokens:
            retry_s = math.ceil(waiting / self._rate)
            raise RequestRejected(503, "overloaded", f"{waiting} tokens wait; send this request again later", retry_s)
        entries = self._queue.add(sequences)
        if not self._has_batches:
            self._has_batches = True
            self._start(self._run_batches())
        try:
            return [await entry.result for entry in entries]
        finally:
            self._queue.withdraw(entries)

    async def evict(self) -> None:
        """Free the device. Nothing happens if the model is evicted.

        Raises:
            RequestRejected: requests run.
        """
        await asyncio.shield(self._start(self._evict()))

    async def restore(self) -> None:
        """Make the model resident. Nothing happens if it is.

        Raises:
            RequestRejected: the device has too little free memory.
        """
        await asyncio.shield(self._start(self._restore()))

    def abort(self) -> None:
        """Reject each request that runs. A batch that is being computed ends without effect."""
        for request in self._requests:
            request.is_aborted = True
        self._queue.reject(aborted())
        self._fail_batch(aborted())

    async def close(self) -> None:
        """Abort all requests, and wait for the batch that is being computed."""
        self.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thread.shutdown()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _evict(self) -> None:
        async with self._change:
            if self.residency == "asleep1":
                return
            if self.running:
                raise RequestRejected(
                    409, "busy", f"{self.running} requests run; wait for their answers, or send POST /abort first"
                )
            self.residency = "evicting"
            await self._change_residency("evict", self._weights.evict)

    async def _restore(self) -> None:
        async with self._change:
            if self.residency == "resident":
                return
            self.residency = "restoring"
            try:
                await self._change_residency("restore", self._weights.restore)
            except InsufficientMemory as error:
                raise RequestRejected(507, "out_of_memory", str(error)) from None

    async def _change_residency(self, step: str, work: Callable[[], None]) -> None:
        began = monotonic()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, work)
            self.took_s[step] = monotonic() - began
        finally:
            self.residency = "resident" if self._weights.is_resident else "asleep1"

    async def _run_batches(self) -> None:
        """Compute batches until nothing waits."""
        try:
            while self._queue:
                self._batch = self._queue.take(self._limits.batch_tokens)
                await self._run_batch()
        finally:
            self._has_batches = False

    async def _run_batch(self) -> None:
        loop, began = asyncio.get_running_loop(), monotonic()
        sequences = [entry.sequence for entry in self._batch]
        try:
            results = await loop.run_in_executor(self._thread, self._forward, sequences)
            self._measure(sum(map(len, sequences)), monotonic() - began)
            for entry, result in zip(self._batch, results, strict=True):
                if not entry.result.done():
                    entry.result.set_result(result)
        except InsufficientMemory as error:
            self._fail_batch(RequestRejected(507, "out_of_memory", str(error)))
        except Exception as error:  # noqa: BLE001 - a failed kernel can leave the device unusable
            self.failure = f"the model failed to compute ({type(error).__name__}: {error})"
            self._fail_batch(RequestRejected(500, "broken", f"{self.failure}; start this server again"))
        finally:
            self._batch = []

    def _fail_batch(self, reason: RequestRejected) -> None:
        for entry in self._batch:
            fail(entry, reason)

    def _measure(self, tokens: int, took_s: Seconds) -> None:
        self._rate += SMOOTHING * (tokens / max(took_s, 1e-6) - self._rate)


def aborted() -> RequestRejected:
    return RequestRejected(409, "aborted", "the request was aborted; send it again if its result is needed")
