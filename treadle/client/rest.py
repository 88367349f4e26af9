"""The client: tasks, batches, rewards, results and trajectories, as REST has them."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Literal, TypeVar

import aiohttp
import msgspec
from pydantic import BaseModel

from shared.api.batches import BatchOpening, BatchView
from shared.api.mesh import NodeList
from shared.api.requests import BulkReceipt, Rejection, RewardRequest
from shared.api.tasks import Task, TaskView
from shared.runtime.errors import DeadlineMissed, Overloaded, Unavailable
from shared.runtime.units import Seconds
from treadle.client import bulk
from treadle.client.http import PASSING, http_session
from treadle.client.patience import Patience, Tries, repeating
from treadle.client.problems import Unexpected, error_of
from treadle.client.results import LineReader, Result
from treadle.client.trajectories import Trajectories

M = TypeVar("M", bound=BaseModel)

ONCE = Patience(total_s=0.0)
"""One try."""

_receipt = msgspec.json.Decoder(BulkReceipt)
_JSON = {"content-type": "application/json"}
_NDJSON = {"content-type": "application/x-ndjson"}


class Health(BaseModel):
    """The body of /healthz."""

    status: Literal["ok"]


class Client:
    """One proxy, seen by one caller. Calls may run at the same time."""

    def __init__(self, session: aiohttp.ClientSession, url: str, patience: Patience, rng: random.Random) -> None:
        self._session = session
        self.url = url
        self._patience = patience
        self._rng = rng
        self.trajectories = Trajectories(self._send)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str,
        *,
        tenant: str | None = None,
        patience: Patience | None = None,
        rng: random.Random | None = None,
        silence_s: Seconds = 30.0,
    ) -> AsyncIterator[Client]:
        """A client of the proxy at `url`; nothing is sent yet.

        Args:
            tenant: who pays; None: the default tenant.
            patience: how long calls are repeated while the door is away.
            rng: jitters the pauses between tries.
            silence_s: a connection without a byte for so long is opened anew.
        Raises:
            ValueError: `url` is not the address of a server.
        """
        headers = {"treadle-tenant": tenant} if tenant else None
        url = url.rstrip("/")
        async with http_session(url, headers=headers, silence_s=silence_s) as session:
            yield cls(session, url, patience or Patience(), rng or random.Random())

    async def probe(self) -> None:
        """Ask once whether a Treadle answers here.

        Raises:
            Unavailable: nobody answers.
            Unexpected: somebody else does.
        """
        await self._call("GET", "/healthz", Health, patience=ONCE)

    async def nodes(self) -> NodeList:
        """Every node that said hello lately."""
        return await self._call("GET", "/v1/nodes", NodeList)

    async def put_task(self, name: str, task: Task) -> TaskView:
        """Declare a task, or change it; the same again changes nothing."""
        return await self._call("PUT", f"/v1/tasks/{name}", TaskView, task.model_dump_json(exclude_unset=True))

    async def task(self, name: str) -> TaskView:
        """A task as it stands.

        Raises:
            NotFound: it was never declared.
        """
        return await self._call("GET", f"/v1/tasks/{name}", TaskView)

    async def open_batch(self, task: str, *, size: int | None = None, key: str | None = None) -> BatchView:
        """Open a batch; the same `key` again returns the same batch.

        Args:
            size: requests to come; None: the task's batch size, or until sealed.
            key: yours, e.g. the training step; None: one of its own, so that tries are harmless.

        Raises:
            NotFound: no such task.
            Conflict: the key has opened a batch of another size.
        """
        opening = BatchOpening(size=size, key=key or uuid.uuid4().hex)
        return await self._call("POST", f"/v1/tasks/{task}/batches", BatchView, opening.model_dump_json())

    async def batch(self, batch: str) -> BatchView:
        """A batch as it stands. O(results) for the proxy.

        Raises:
            NotFound: it was never opened, or has expired.
        """
        return await self._call("GET", f"/v1/batches/{batch}", BatchView)

    async def seal(self, batch: str) -> BatchView:
        """No more requests come; it ends with the last answer.

        Raises:
            Conflict: it ended otherwise.
        """
        return await self._call("POST", f"/v1/batches/{batch}/seal", BatchView)

    async def cancel(self, batch: str) -> BatchView:
        """Cancel what is unanswered.

        Raises:
            Conflict: it ended otherwise.
        """
        return await self._call("DELETE", f"/v1/batches/{batch}", BatchView)

    async def submit(
        self, batch: str, requests: Sequence[RewardRequest], *, taken: Callable[[int], None] | None = None
    ) -> BulkReceipt:
        """Submit requests to a batch, in chunks; what is refused for want of room is sent again.

        Args:
            requests: each with a `request_id`, which makes sending again harmless.
            taken: hears how many lie safely in the journal, call by call.
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
        tries = Tries(self._patience, f"submitting to {self.url}", self._rng)
        while True:
            body = b"\n".join(lines[place] for place in places)
            reply = await self._send("POST", "/v1/rewards/bulk", body, _NDJSON, {"batch": batch})
            receipt = _receipt.decode(reply)
            accepted, repeated = accepted + receipt.accepted, repeated + receipt.repeated
            ends = bulk.shifted(receipt, places)
            rejected += [end for end in ends if not bulk.passes(end)]
            again = [end for end in ends if bulk.passes(end)]
            if not again:
                return BulkReceipt(accepted=accepted, repeated=repeated, rejected=rejected)
            if len(again) < len(places):
                tries.succeeded()
            places = [end.line - 1 for end in again]
            await tries.failed(_error_of_line(again[-1]))

    async def results(
        self, batch: str, *, after: str = "", quiet_s: Seconds = 3600.0
    ) -> AsyncGenerator[list[Result], None]:
        """Every result of a batch once, as they come, until it has ended; a broken connection is taken up again.

        Args:
            after: cursor of the last result the caller has; empty: from the first.
            quiet_s: give up when nothing came for so long.
        Raises:
            DeadlineMissed: nothing came for `quiet_s`.
            Unavailable: the door was away for longer than patience lasts.
            NotFound: there is no such batch.
        """
        loop = asyncio.get_running_loop()
        tries = Tries(self._patience, f"reading results from {self.url}", self._rng)
        heard_at, ended = loop.time(), False
        while True:
            opened = False
            try:
                async with aclosing(self._pages(batch, after, follow=not ended)) as pages:
                    async for page in pages:
                        opened = True
                        tries.succeeded()
                        if page:
                            after, heard_at = page[-1].cursor, loop.time()
                            yield page
                if ended:
                    return
                ended = await self._has_ended(batch)
                if not ended:
                    await tries.failed(Unavailable(what="the stream of results ended before the batch"))
            except (*PASSING, Overloaded, Unavailable) as error:
                silent = isinstance(error, TimeoutError) and opened and not ended
                if not silent:  # a follower hears nothing while nothing is answered
                    await tries.failed(error)
            if loop.time() - heard_at > quiet_s:
                raise DeadlineMissed(what=f"batch {batch} gave no answer for {quiet_s:g} s; read on after={after!r}")

    async def _has_ended(self, batch: str) -> bool:
        return (await self.batch(batch)).ended_at is not None

    async def _pages(self, batch: str, after: str, *, follow: bool) -> AsyncGenerator[list[Result], None]:
        """Results as one connection brings them; an empty page first, when the proxy has begun to answer."""
        query = {"follow": "true" if follow else "false", "after": after}
        async with self._session.get(f"/v1/batches/{batch}/results", params=query) as reply:
            if reply.status != 200:
                raise error_of(reply.status, await reply.read(), str(reply.url), reply.headers.get("retry-after"))
            reader = LineReader()
            yield []
            async for data in reply.content.iter_any():
                yield reader.feed(data)

    async def _call(
        self, method: str, path: str, model: type[M], body: str | None = None, patience: Patience | None = None
    ) -> M:
        sent = body.encode() if body is not None else None
        reply = await self._send(method, path, sent, _JSON, patience=patience)
        try:
            return model.model_validate_json(reply)
        except ValueError as error:
            what = f"{self.url}{path} answered what is no {model.__name__}: is it the address of Treadle's proxy?"
            raise Unexpected(what=what) from error

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        query: dict[str, str] | None = None,
        patience: Patience | None = None,
    ) -> bytes:
        async def attempt() -> bytes:
            sent = headers if body is not None else None
            async with self._session.request(method, path, data=body, headers=sent, params=query) as reply:
                answer = await reply.read()
                if reply.status >= 400:
                    raise error_of(reply.status, answer, str(reply.url), reply.headers.get("retry-after"))
                return answer

        return await repeating(attempt, patience or self._patience, f"{method} {self.url}{path}", self._rng)


def _error_of_line(rejection: Rejection) -> Overloaded:
    what = str(rejection.problem.get("what") or rejection.problem.get("detail"))
    return Overloaded(what=what, retry_after_s=float(rejection.problem.get("retry_after_s") or 1.0))
