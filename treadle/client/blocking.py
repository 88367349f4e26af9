"""`Treadle`: the client without `await`. Its methods are those of `AsyncTreadle`, in the event loop of a thread."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from treadle.client.asynchronous import CANCEL_S, AsyncTreadle
from treadle.client.leases import AsyncLease, noted
from treadle.client.leases import Quotas as LeasedQuotas
from treadle.client.model_services import AsyncModelServices
from treadle.client.quotas import AsyncQuotas
from treadle.client.retry import RetryPolicy
from treadle.client.tenants import AsyncTenants
from treadle.client.trajectories import AsyncTrajectories

P = ParamSpec("P")
R = TypeVar("R")


class LoopThread:
    """An event loop in a thread of its own. Any thread may call it, also one with an event loop (notebooks)."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="treadle", daemon=True)
        self._closing = False
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end. Ctrl-C cancels it and leaves it `CANCEL_S` + 1 s to clean up."""
        if self._closing or not self._thread.is_alive() or threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("this Treadle is closed, belongs to another process, or is called by its own callback")
        call = _Call(coroutine)
        try:
            return asyncio.run_coroutine_threadsafe(call.run(), self._loop).result()
        except KeyboardInterrupt:
            # The interrupt may come before `run_coroutine_threadsafe` returns a future, when the coroutine already runs
            self._loop.call_soon_threadsafe(call.cancel)
            call.ended.wait(CANCEL_S + 1.0)
            raise

    def close(self, cleanup: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Cancel the calls of other threads, run `cleanup` after they have ended, and stop the loop. Idempotent."""
        if self._thread.is_alive():
            self._closing = True
            asyncio.run_coroutine_threadsafe(self._end_calls(cleanup), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def closed(self) -> bool:
        """The loop has ended."""
        return not self._thread.is_alive()

    async def _end_calls(self, cleanup: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """Cancel the calls of other threads, which would wait for ever, and clean up after them."""
        calls = asyncio.all_tasks() - {task for task in [asyncio.current_task()] if task is not None}
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        if cleanup is not None:
            await cleanup()


class _Call(Generic[R]):
    """A coroutine in the loop of another thread, which can be cancelled whether or not it has begun."""

    def __init__(self, coroutine: Coroutine[Any, Any, R]) -> None:
        self.ended = threading.Event()
        self._coroutine = coroutine
        self._task: asyncio.Task[Any] | None = None

    async def run(self) -> R:
        if self.ended.is_set():
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        try:
            return await self._coroutine
        finally:
            self.ended.set()

    def cancel(self) -> None:
        """Cancel the coroutine, in its loop. One that has not begun never begins."""
        if self._task is not None:
            self._task.cancel()
        else:
            self._coroutine.close()
            self.ended.set()


class _Twin:
    """Base of the blocking clients: an asynchronous one and the thread that runs it."""

    def __init__(self, twin: Any, thread: LoopThread) -> None:
        self._twin = twin
        self._thread = thread


def _blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[_Twin, P], R]:
    """Return the blocking form of `method`: same parameters, result and documentation."""

    @functools.wraps(method)
    def call(self: _Twin, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._thread.call(method(self._twin, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[Any, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[_Twin, P], Iterator[R]]:
    """Return the blocking form of a `method` that yields."""

    @functools.wraps(method)
    def call(self: _Twin, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        items = method(self._twin, *args, **kwargs)

        async def following() -> tuple[R, ...]:
            try:
                return (await anext(items),)
            except StopAsyncIteration:
                return ()

        try:
            while found := self._thread.call(following()):
                yield from found
        finally:
            if not self._thread.closed:
                self._thread.call(items.aclose())

    return call


class Trajectories(_Twin):
    """Trajectories of one mesh."""

    open = _blocking(AsyncTrajectories.open)
    view = _blocking(AsyncTrajectories.view)
    act = _blocking(AsyncTrajectories.act)
    rows = _blocking(AsyncTrajectories.rows)
    model_calls = _blocking(AsyncTrajectories.model_calls)
    trace = _blocking(AsyncTrajectories.trace)
    delete_tokens = _blocking(AsyncTrajectories.delete_tokens)
    prioritize = _blocking(AsyncTrajectories.prioritize)
    close = _blocking(AsyncTrajectories.close)


class Tenants(_Twin):
    """Weights of the tenants that share one mesh."""

    weights = _blocking(AsyncTenants.weights)
    set_weight = _blocking(AsyncTenants.set_weight)
    reset_weight = _blocking(AsyncTenants.reset_weight)


class Quotas(_Twin):
    """Quotas of one mesh."""

    all = _blocking(AsyncQuotas.all)
    view = _blocking(AsyncQuotas.view)
    set = _blocking(AsyncQuotas.set)
    delete = _blocking(AsyncQuotas.delete)


class ModelServices(_Twin):
    """Model services of one mesh."""

    all = _blocking(AsyncModelServices.all)
    overview = _blocking(AsyncModelServices.overview)
    view = _blocking(AsyncModelServices.view)
    address = _blocking(AsyncModelServices.address)
    set = _blocking(AsyncModelServices.set)
    delete = _blocking(AsyncModelServices.delete)


class HeldLease(_Twin):
    """Amounts of quotas in a `with` block; see `AsyncLease`. They are renewed by the client's thread.

    One block at a time: a second one, also of another thread, raises `RuntimeError`. A thread cannot be interrupted:
    long bodies call `check` between two steps. If the lease was lost, the end of the block raises `LeaseLost`.
    """

    _twin: AsyncLease

    @property
    def id(self) -> str:
        """Id of the lease."""
        return self._twin.id

    @property
    def fence(self) -> int:
        """Number that grows with each lease of the mesh."""
        return self._twin.fence

    @property
    def is_lost(self) -> bool:
        """True if other callers may hold the amounts."""
        return self._twin.is_lost

    def check(self) -> None:
        """Raise `LeaseLost` if the lease is lost."""
        self._twin.check()

    def settle(self, used: Mapping[str, float]) -> None:
        """Note the amounts that were really used, quota -> amount; they are sent with the release.

        Raises:
            ValueError: the lease takes nothing of such a quota, or the mesh accepts no such amount.
            RuntimeError: the lease is not held: its block has ended, or has not begun.
        """
        self._twin.settle(used)

    def __enter__(self) -> Self:
        self._thread.call(self._twin.acquire())
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        with noted(error):
            self._thread.call(self._twin.release())
            self.check()


class Treadle(_Twin):
    """Client of one mesh. Threads may share it.

    Every call is idempotent, and is retried while the mesh is away. Errors are those of `treadle.client.errors`. Use it
    in a `with` block, or close it.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        tenant: str | None = None,
        retry_policy: RetryPolicy | None = None,
        read_timeout_s: float = 30.0,
    ) -> None:
        """Check the address. Nothing is sent yet; the arguments are those of `AsyncTreadle`."""
        twin = AsyncTreadle(url, tenant=tenant, retry_policy=retry_policy, read_timeout_s=read_timeout_s)
        super().__init__(twin, LoopThread())
        self.url = twin.url
        self.trajectories = Trajectories(twin.trajectories, self._thread)
        self.tenants = Tenants(twin.tenants, self._thread)
        self.quotas = Quotas(twin.quotas, self._thread)
        self.model_services = ModelServices(twin.model_services, self._thread)

    def quota(
        self, quotas: LeasedQuotas, *, wait_s: float = 20.0, ttl_s: float = 20.0, priority: float = 0.0
    ) -> HeldLease:
        """Return a lease of amounts of quotas for a `with` block; see `AsyncTreadle.quota`."""
        return HeldLease(self._twin.quota(quotas, wait_s=wait_s, ttl_s=ttl_s, priority=priority), self._thread)

    probe = _blocking(AsyncTreadle.probe)
    nodes = _blocking(AsyncTreadle.nodes)
    put_task = _blocking(AsyncTreadle.put_task)
    task = _blocking(AsyncTreadle.task)
    open_batch = _blocking(AsyncTreadle.open_batch)
    batch = _blocking(AsyncTreadle.batch)
    seal = _blocking(AsyncTreadle.seal)
    cancel = _blocking(AsyncTreadle.cancel)
    park = _blocking(AsyncTreadle.park)
    resume = _blocking(AsyncTreadle.resume)
    report_progress = _blocking(AsyncTreadle.report_progress)
    submit = _blocking(AsyncTreadle.submit)
    results = _iterating(AsyncTreadle.results)
    grade = _blocking(AsyncTreadle.grade)
    run = _blocking(AsyncTreadle.run)

    def close(self) -> None:
        """Close the connections and end the thread. Calls of other threads are cancelled."""
        self._thread.close(self._twin.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
