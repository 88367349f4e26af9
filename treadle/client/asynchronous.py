"""`AsyncTreadle`: tasks, batches, rewards, results, actions and trajectories of one mesh."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self

import msgspec

from treadle.client import bulk
from treadle.client.actions import run_action
from treadle.client.answers import (
    Answer,
    BatchView,
    BulkReceipt,
    Health,
    NodeList,
    NodeView,
    ProgressReceipt,
    Rejection,
    Result,
    TaskView,
)
from treadle.client.calls import NDJSON, Calls
from treadle.client.errors import Overloaded, TreadleError
from treadle.client.following import follow_results
from treadle.client.graded import GradedBatch, Progress, Silence
from treadle.client.patience import Patience, Tries
from treadle.client.requests import ActionRequest, RewardRequest, Task
from treadle.client.trajectories import AsyncTrajectories

DEFAULT_URL = "http://127.0.0.1:8700"
ONCE = Patience(total_s=0.0)
"""One try."""
QUIET_S = 3660.0
"""A batch without an answer for so long is given up: a minute beyond the default budget of a request."""
CANCEL_S = 5.0
"""Limit of cancelling a batch after Ctrl-C."""


class AsyncTreadle:
    """One mesh, seen by one caller. Calls may run at the same time, in one event loop.

    Every call is harmless to repeat, and is repeated while the mesh is away. Errors are those of
    `treadle.client.errors`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        tenant: str | None = None,
        patience: Patience | None = None,
        silence_s: float = 30.0,
        rng: random.Random | None = None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            url: of the proxy. None: TREADLE_URL, else http://127.0.0.1:8700.
            tenant: who pays; None: the default tenant.
            patience: how long calls are repeated while the mesh is away.
            silence_s: a connection without a byte for so long is opened anew.
            rng: jitters the pauses between tries.
        Raises:
            ValueError: `url` is not the address of a server.
        """
        url = url or os.environ.get("TREADLE_URL") or DEFAULT_URL
        self._calls = Calls(url, tenant, patience or Patience(), silence_s, rng)
        self.trajectories = AsyncTrajectories(self._calls)

    @property
    def url(self) -> str:
        """Address of the proxy."""
        return self._calls.url

    async def close(self) -> None:
        """Close the connections."""
        await self._calls.close()

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
        progress: Progress | None = None,
        quiet_s: float = QUIET_S,
    ) -> GradedBatch:
        """Open a batch of these requests, submit them and read every answer.

        Cancelled (Ctrl-C), it cancels the batch.

        Args:
            task: a declared task (`put_task`).
            requests: one a sample; one without a `request_id` gets its place, from "0".
            key: opens the batch; the same key and requests again continue where an earlier run stopped.
            progress: receives what is submitted and answered meanwhile.
            quiet_s: without any answer for so long, waiting ends.
        Raises:
            NotFound: there is no such task.
            DeadlineMissed: nothing was answered for `quiet_s`.
            Unavailable: the mesh was away for longer than patience lasts; the batch goes on meanwhile.
        """
        named = [
            request if request.request_id else msgspec.structs.replace(request, request_id=str(place))
            for place, request in enumerate(requests)
        ]
        graded = GradedBatch(await self.open_batch(task, size=len(named), key=key))
        try:
            await self._exchange(graded, named, quiet_s, progress or Silence())
        except asyncio.CancelledError:
            with contextlib.suppress(TreadleError, TimeoutError):
                async with asyncio.timeout(CANCEL_S):
                    await self.cancel(graded.view.id)
            raise
        graded.view = await self.batch(graded.view.id)
        return graded

    async def run(self, /, kind: str, params: Mapping[str, Any] | None = None, **rest: Any) -> Answer:
        """Run one action outside any batch and return its answer, however it ended.

        Args:
            kind: `code.asserts`, `math.verify` ... (docs/graders.md)
            params: the kind's own.
            rest: other fields of `ActionRequest`: `units`, `timeout_s`, `budget_s`, `request_id` ...
        Raises:
            BadRequest: it has no meaning.
        """
        return await run_action(self._calls, "/v1/actions", ActionRequest(kind=kind, params=params or {}, **rest))

    async def probe(self) -> None:
        """Check once that a mesh answers here.

        Raises:
            Unavailable: nothing answers.
            Unexpected: another server answers.
        """
        await self._calls.read(Health, "GET", "/healthz", patience=ONCE)

    async def nodes(self) -> list[NodeView]:
        """Return every node that reported lately."""
        return (await self._calls.read(NodeList, "GET", "/v1/nodes")).nodes

    async def put_task(self, name: str, task: Task | Mapping[str, Any]) -> TaskView:
        """Declare a task, or change it; the same again changes nothing."""
        return await self._calls.read(TaskView, "PUT", f"/v1/tasks/{name}", task)

    async def task(self, name: str) -> TaskView:
        """Return a task.

        Raises:
            NotFound: it was never declared.
        """
        return await self._calls.read(TaskView, "GET", f"/v1/tasks/{name}")

    async def open_batch(self, task: str, *, size: int | None = None, key: str | None = None) -> BatchView:
        """Open a batch; the same `key` again returns the same batch.

        Args:
            size: requests to come; None: the task's batch size, or until sealed.
            key: yours, e.g. the training step; None: one of its own, so that tries are harmless.

        Raises:
            NotFound: no such task.
            Conflict: the key has opened a batch of another size.
        """
        opening = {"size": size, "key": key or uuid.uuid4().hex}
        return await self._calls.read(BatchView, "POST", f"/v1/tasks/{task}/batches", opening)

    async def batch(self, batch: str) -> BatchView:
        """Return a batch. O(results) for the proxy.

        Raises:
            NotFound: it was never opened, or has expired.
        """
        return await self._calls.read(BatchView, "GET", f"/v1/batches/{batch}")

    async def seal(self, batch: str) -> BatchView:
        """No more requests come; it ends with the last answer.

        Raises:
            Conflict: it ended otherwise.
        """
        return await self._calls.read(BatchView, "POST", f"/v1/batches/{batch}/seal")

    async def cancel(self, batch: str) -> BatchView:
        """Cancel the requests without an answer.

        Raises:
            Conflict: it ended otherwise.
        """
        return await self._calls.read(BatchView, "DELETE", f"/v1/batches/{batch}")

    async def report_progress(
        self, batch: str, generating: int, lengths: Sequence[float] | None = None
    ) -> ProgressReceipt:
        """Report how far a rollout is, so that units are ready when its requests come.

        Args:
            batch: its id.
            generating: samples still being generated; 0: all requests have been sent.
            lengths: tokens so far of each of them, as far as known.
        """
        report = {"generating": generating, "lengths": lengths}
        return await self._calls.read(ProgressReceipt, "POST", f"/v1/batches/{batch}/progress", report)

    async def submit(
        self, batch: str, requests: Sequence[RewardRequest], *, taken: Callable[[int], None] | None = None
    ) -> BulkReceipt:
        """Submit requests to a batch, in chunks; what is rejected because the mesh is full is sent again.

        Args:
            requests: each with a `request_id`, which makes sending again harmless.
            taken: receives how many more are in the journal, call by call.
        Returns:
            Counts, and what cannot be accepted; `line` is the 1-based place in `requests`.
        Raises:
            NotFound: there is no such batch.
            Overloaded, Unavailable: nothing was taken for as long as patience lasts; what was accepted stays so.
        """
        assert all(request.request_id for request in requests), "a request without request_id cannot be sent again"
        lines = bulk.encode(requests)
        accepted = repeated = 0
        rejected: list[Rejection] = []
        for chunk in bulk.chunks(lines):
            receipt = await self._submit(batch, lines, range(*chunk.indices(len(lines))))
            if taken is not None:
                taken(receipt.accepted + receipt.repeated)
            accepted, repeated = accepted + receipt.accepted, repeated + receipt.repeated
            rejected += receipt.rejected
        return BulkReceipt(accepted=accepted, repeated=repeated, rejected=rejected)

    async def _submit(self, batch: str, lines: Sequence[bytes], places: Sequence[int]) -> BulkReceipt:
        accepted = repeated = 0
        rejected: list[Rejection] = []
        tries = Tries(self._calls.patience, f"submitting to {self.url}", self._calls.rng)
        while True:
            body = b"\n".join(lines[place] for place in places)
            reply = await self._calls.send("POST", "/v1/rewards/bulk", body, NDJSON, {"batch": batch})
            receipt = msgspec.json.decode(reply, type=BulkReceipt)
            accepted, repeated = accepted + receipt.accepted, repeated + receipt.repeated
            ends = bulk.shifted(receipt, places)
            rejected += [end for end in ends if not bulk.is_transient(end)]
            again = [end for end in ends if bulk.is_transient(end)]
            if not again:
                return BulkReceipt(accepted=accepted, repeated=repeated, rejected=rejected)
            if len(again) < len(places):
                tries.succeeded()
            places = [end.line - 1 for end in again]
            await tries.failed(_error_of_line(again[-1]))

    def results(self, batch: str, *, after: str = "", quiet_s: float = QUIET_S) -> AsyncGenerator[list[Result], None]:
        """Read every result of a batch once, page by page, until it has ended. A broken connection is continued.

        Args:
            batch: its id.
            after: cursor of the last result the caller has; empty: from the first.
            quiet_s: give up when nothing came for so long.
        Raises:
            DeadlineMissed: nothing came for `quiet_s`.
            Unavailable: the mesh was away for longer than patience lasts.
            NotFound: there is no such batch.
        """
        return follow_results(self._calls, batch, after, quiet_s)

    async def _exchange(
        self, graded: GradedBatch, requests: Sequence[RewardRequest], quiet_s: float, progress: Progress
    ) -> None:
        """Submit and read at the same time: the first answers are back before the last request has left."""
        failed: TreadleError | None = None
        try:
            async with asyncio.TaskGroup() as group, aclosing(self.results(graded.view.id, quiet_s=quiet_s)) as pages:
                group.create_task(self._submit_all(graded, requests, progress))
                async for page in pages:
                    graded.take(page)
                    progress.answered(page)
        except* TreadleError as errors:
            failed = _first(errors)
        if failed is not None:  # raised out here: Python 3.11.2 wraps what is raised in an except* into a group again
            raise failed

    async def _submit_all(self, graded: GradedBatch, requests: Sequence[RewardRequest], progress: Progress) -> None:
        receipt = await self.submit(graded.view.id, requests, taken=progress.submitted)
        for rejection in receipt.rejected:
            graded.rejected[requests[rejection.line - 1].request_id or ""] = rejection
        if receipt.rejected:  # the batch waits for requests that will not come
            await self.seal(graded.view.id)


def _error_of_line(rejection: Rejection) -> Overloaded:
    return Overloaded(str(rejection.problem.get("detail")), rejection.problem)


def _first(errors: BaseExceptionGroup[TreadleError]) -> TreadleError:
    for error in errors.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("an exception group holds at least one")
