"""`AsyncTreadle`: tasks, batches, rewards, results, actions and trajectories of one mesh."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, Self

import msgspec

from treadle.client import bulk
from treadle.client.actions import run_action
from treadle.client.answers import Answer, BatchView, BulkReceipt, NodeList, NodeView, ProgressReceipt, Result, TaskView
from treadle.client.errors import TreadleError
from treadle.client.graded import GradedBatch, NoProgress, ProgressListener
from treadle.client.leases import AsyncLease, Quotas, requested
from treadle.client.model_services import AsyncModelServices
from treadle.client.quotas import AsyncQuotas
from treadle.client.requests import (
    ActionKind,
    ActionRequest,
    BatchOpening,
    ParkRequest,
    ProgressReport,
    RewardRequest,
    Task,
)
from treadle.client.results import follow_results
from treadle.client.retry import RetryPolicy
from treadle.client.tenants import AsyncTenants
from treadle.client.trajectories import AsyncTrajectories
from treadle.client.transport import Transport, quoted

DEFAULT_URL = "http://127.0.0.1:8700"
NO_RETRY = RetryPolicy(give_up_after_s=0.0)
ANSWER_TIMEOUT_S = 3660.0
"""Seconds without an answer after which waiting for a batch ends: a request's default budget and a minute."""
CANCEL_S = 5.0
"""Limit of cancelling a batch after Ctrl-C."""


class Liveness(msgspec.Struct, frozen=True):
    """Body of /healthz."""

    status: Literal["ok"]


class AsyncTreadle:
    """Client of one mesh. Calls may run at the same time, in one event loop.

    Every call is idempotent, and is retried while the mesh is away. Errors are those of `treadle.client.errors`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        tenant: str | None = None,
        retry_policy: RetryPolicy | None = None,
        read_timeout_s: float = 30.0,
        rng: random.Random | None = None,
    ) -> None:
        """Check the address. Nothing is sent yet.

        Args:
            url: address of the proxy, with the prefix of a reverse proxy if there is one. None: TREADLE_URL, else
                http://127.0.0.1:8700.
            tenant: owner of the work for shares and limits. None: the default tenant.
            retry_policy: bounds of retries while the mesh is away.
            read_timeout_s: seconds without a byte after which a connection is opened anew.
            rng: source of the backoff's jitter.
        Raises:
            InvalidUrl: `url` is not the address of a server.
        """
        url = url or os.environ.get("TREADLE_URL") or DEFAULT_URL
        self._transport = Transport(url, tenant, retry_policy or RetryPolicy(), read_timeout_s, rng)
        self.trajectories = AsyncTrajectories(self._transport)
        self.tenants = AsyncTenants(self._transport)
        self.quotas = AsyncQuotas(self._transport)
        self.model_services = AsyncModelServices(self._transport)

    @property
    def url(self) -> str:
        """Address of the proxy."""
        return self._transport.url

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def grade(
        self,
        task: str,
        requests: Sequence[RewardRequest],
        *,
        key: str | None = None,
        progress: ProgressListener | None = None,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> GradedBatch:
        """Open a batch of these requests, submit them and read every answer.

        Ctrl-C (or cancelling the coroutine) cancels the batch.

        Args:
            task: a declared task (`put_task`).
            requests: one for each sample. The default of a `request_id` is its place, from "0".
            key: key of the batch. The same key and requests continue where an earlier run stopped.
            progress: receives the submitted and answered requests.
            answer_timeout_s: seconds without any answer after which waiting ends.
        Raises:
            BadRequest: two requests have the same `request_id`, or JSON has no such value. No batch was opened.
            NotFound: there is no such task.
            DeadlineMissed: nothing was answered for `answer_timeout_s`.
            Unavailable: the mesh was away until the retry policy gave up. The batch goes on.
        """
        named = [
            request if request.request_id else msgspec.structs.replace(request, request_id=str(place))
            for place, request in enumerate(requests)
        ]
        bulk.check_unique(named)
        lines = bulk.encode(named)  # before the batch is opened: `key` may name one with accepted requests
        graded = GradedBatch(await self.open_batch(task, size=len(named), key=key))
        try:
            await self._exchange(graded, named, lines, answer_timeout_s, progress or NoProgress())
        except asyncio.CancelledError:
            with contextlib.suppress(TreadleError, TimeoutError):
                async with asyncio.timeout(CANCEL_S):
                    await self.cancel(graded.view.id)
            raise
        graded.view = await self.batch(graded.view.id)
        return graded

    async def run(self, /, kind: ActionKind, params: Mapping[str, Any] | None = None, **rest: Any) -> Answer:
        """Run one action outside any batch and return its answer, however it ended.

        Args:
            kind: `code.asserts`, `math.verify` ... (docs/graders.md)
            params: parameters of the kind.
            rest: other fields of `ActionRequest`: `units`, `timeout_s`, `budget_s`, `request_id` ...
        Raises:
            BadRequest: the mesh rejects the kind, its parameters or a field.
        """
        return await run_action(self._transport, "/v1/actions", ActionRequest(kind=kind, params=params or {}, **rest))

    def quota(self, quotas: Quotas, *, wait_s: float = 20.0, ttl_s: float = 20.0, priority: float = 0.0) -> AsyncLease:
        """Return a lease of amounts of quotas for an `async with` block, to call an API without the mesh.

        Args:
            quotas: a quota, of which 1 is held, or quota -> amount: all or none.
            wait_s: seconds within which they must be granted.
            ttl_s: seconds after which they are free if this program ends. Until then it renews them.
            priority: seconds by which it goes later in the order, negative for earlier.
        """
        return AsyncLease(self._transport, requested(quotas, wait_s, ttl_s, priority))

    async def probe(self) -> None:
        """Check once that a mesh answers here. `Unavailable`: nothing answers. `Unexpected`: another server does."""
        await self._transport.call(Liveness, "GET", "/healthz", retry_policy=NO_RETRY)

    async def nodes(self) -> list[NodeView]:
        """Return every node that reported lately."""
        return (await self._transport.call(NodeList, "GET", "/v1/nodes")).nodes

    async def put_task(self, name: str, task: Task | Mapping[str, Any]) -> TaskView:
        """Declare a task, or change it. Idempotent."""
        return await self._transport.call(TaskView, "PUT", f"/v1/tasks/{quoted(name)}", task)

    async def task(self, name: str) -> TaskView:
        """Return a task.

        Raises:
            NotFound: it was never declared.
        """
        return await self._transport.call(TaskView, "GET", f"/v1/tasks/{quoted(name)}")

    async def open_batch(self, task: str, *, size: int | None = None, key: str | None = None) -> BatchView:
        """Open a batch; the same `key` again returns the same batch.

        Args:
            task: its name.
            size: number of requests. None: the task's batch size; without one, the batch ends when it is sealed.
            key: key of the caller, e.g. the training step. None: a random one, so that retries open one batch.
        Raises:
            NotFound: no such task.
            Conflict: the key has opened a batch of another size.
        """
        opening = BatchOpening(size=size, key=key or uuid.uuid4().hex)
        return await self._transport.call(BatchView, "POST", f"/v1/tasks/{quoted(task)}/batches", opening)

    async def batch(self, batch: str) -> BatchView:
        """Return a batch. O(results) for the proxy.

        Raises:
            NotFound: it was never opened, or has expired.
        """
        return await self._transport.call(BatchView, "GET", f"/v1/batches/{quoted(batch)}")

    async def seal(self, batch: str) -> BatchView:
        """Seal a batch: it accepts no more requests and ends with the last answer.

        Raises:
            Conflict: it ended otherwise.
        """
        return await self._transport.call(BatchView, "POST", f"/v1/batches/{quoted(batch)}/seal")

    async def park(self, action: str, reason: str = "") -> Answer:
        """Park a running action of a trajectory: it is frozen and returns its cores until `resume`. May be repeated.

        Raises:
            Conflict: it is not running, has been answered, or is in no trajectory.
        """
        request = ParkRequest(reason=reason)
        return await self._transport.call(Answer, "POST", f"/v1/actions/{quoted(action)}/park", request)

    async def resume(self, action: str) -> Answer:
        """Let a parked action continue as soon as its cores are free. May be repeated. Raises like `park`."""
        return await self._transport.call(Answer, "POST", f"/v1/actions/{quoted(action)}/resume")

    async def cancel(self, batch: str) -> BatchView:
        """Cancel the requests without an answer.

        Raises:
            Conflict: it ended otherwise.
        """
        return await self._transport.call(BatchView, "DELETE", f"/v1/batches/{quoted(batch)}")

    async def report_progress(
        self, batch: str, generating: int, lengths: Sequence[float] | None = None
    ) -> ProgressReceipt:
        """Report the progress of a rollout, so that units are ready when its requests come.

        Args:
            batch: its id.
            generating: samples still being generated; 0: all requests have been sent.
            lengths: tokens so far of each of them, if known.
        """
        report = ProgressReport(generating=generating, lengths=lengths)
        return await self._transport.call(ProgressReceipt, "POST", f"/v1/batches/{quoted(batch)}/progress", report)

    async def submit(
        self, batch: str, requests: Sequence[RewardRequest], *, on_accepted: Callable[[int], None] | None = None
    ) -> BulkReceipt:
        """Submit requests to a batch, in chunks. Requests rejected because the mesh is full are sent again.

        Args:
            batch: its id.
            requests: each with a `request_id`, which makes retries idempotent.
            on_accepted: receives the number of newly accepted requests after each call.
        Returns:
            Counts, and the rejected requests; `line` is the 1-based place in `requests`.
        Raises:
            BadRequest: a request has no `request_id`, or JSON has no such value. Nothing was sent.
            NotFound: there is no such batch.
            Overloaded, Unavailable: the retry policy gave up. Accepted requests stay accepted.
        """
        return await self._submit_lines(batch, bulk.encode(requests), on_accepted)

    def results(
        self, batch: str, *, after: str = "", answer_timeout_s: float = ANSWER_TIMEOUT_S
    ) -> AsyncGenerator[list[Result], None]:
        """Read every result of a batch once, page by page, until it has ended. A broken connection is continued.

        Args:
            batch: its id.
            after: cursor of the last result that the caller has. Empty: from the first.
            answer_timeout_s: seconds without any answer after which reading ends.
        Raises:
            DeadlineMissed: nothing was answered for `answer_timeout_s`.
            Unavailable: the mesh was away until the retry policy gave up.
            NotFound: there is no such batch.
        """
        return follow_results(self._transport, batch, after, answer_timeout_s)

    async def _submit_lines(
        self, batch: str, lines: Sequence[bytes], on_accepted: Callable[[int], None] | None
    ) -> BulkReceipt:
        return await bulk.submit_all(self._transport, batch, lines, on_accepted)

    async def _exchange(
        self,
        graded: GradedBatch,
        requests: Sequence[RewardRequest],
        lines: Sequence[bytes],
        answer_timeout_s: float,
        progress: ProgressListener,
    ) -> None:
        """Submit requests and read results at the same time."""
        failed: TreadleError | None = None
        try:
            async with (
                asyncio.TaskGroup() as group,
                aclosing(self.results(graded.view.id, answer_timeout_s=answer_timeout_s)) as pages,
            ):
                group.create_task(self._submit_all(graded, requests, lines, progress))
                async for page in pages:
                    graded.add(page)
                    progress.answered(page)
        except* TreadleError as errors:
            failed = _first(errors)
        if failed is not None:  # not in the except*: Python 3.11.2 wraps an error raised there into a group again
            raise failed

    async def _submit_all(
        self, graded: GradedBatch, requests: Sequence[RewardRequest], lines: Sequence[bytes], progress: ProgressListener
    ) -> None:
        receipt = await self._submit_lines(graded.view.id, lines, progress.submitted)
        for rejection in receipt.rejected:
            graded.rejected[requests[rejection.line - 1].request_id or ""] = rejection
        if receipt.rejected:  # the batch waits for requests that will not come
            await self.seal(graded.view.id)


def _first(errors: BaseExceptionGroup[TreadleError]) -> TreadleError:
    for error in errors.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("an exception group holds at least one")
