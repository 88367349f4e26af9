"""`POST /retrieve`, as the retrieval servers of Search-R1, verl, SkyRL and slime: queries in, documents out.

The upstream, its quotas and its limits are those of a task: `retrieve` of the tenant `default`, or the one of the path.
Its only stage is of kind `search.retrieve`. Clients of these servers repeat calls after 500, 502, 503 and 504 alone.
They take any other error, and an empty answer, as an answer. So:

  - overload, a late answer and a failed upstream are 503 with Retry-After, and no answer has fewer lists than queries;
  - a call of more queries than `queries_a_call` is several actions, and each takes the quotas of the stage;
  - a caller gets 503 before it gives up (`PROXY_RETRIEVE_S`). Its actions stay in their queue for a minute, and those
    that have ended keep their documents: the repeat of the call joins them, and nothing is paid twice.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import msgspec
from redis.exceptions import OutOfMemoryError

from services.proxy.http.asgi import HotRoute
from services.proxy.http.call import Call
from services.proxy.http.replies import Reply
from services.proxy.http.retries import digest_of_call
from services.proxy.metrics import RETRIEVE
from services.proxy.records.ids import random_id
from services.proxy.records.workflows import Workflow
from services.proxy.state import DEFAULT_TENANT, ProxyState
from shared.bus.connection import MEMORY_FULL, TRANSIENT
from shared.messages.actions import ActionSubmitted
from shared.runtime.errors import BadRequest, Conflict, NotFound, Overloaded, Unavailable
from shared.runtime.patterns import NAME, WORDS, is_name
from shared.runtime.validation import decoded

DEFAULT_TASK: Final = "retrieve"
KIND: Final = "search.retrieve"
MOST_QUERIES: Final = 4096
MOST_A_CALL: Final = 64
"""Default of `queries_a_call`, as the kind has it."""
MOST_ACTIONS: Final = 256
"""Most actions of one call."""
RETRIEVE_ENDS: Final = ("answered", "late", "failed", "disconnected", "stopped")
_Query = Annotated[str, msgspec.Meta(max_length=1 << 16)]
_encoder = msgspec.json.Encoder()


class Retrieve(msgspec.Struct, frozen=True, kw_only=True):
    """Queries for a retrieval server. Unknown fields are ignored, as the original servers do."""

    queries: Annotated[list[_Query], msgspec.Meta(max_length=MOST_QUERIES)] = []
    query: _Query | None = None
    """One query, as SkyRL's client sends it."""
    topk: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    """Most documents of each query. Null: the task's, or the upstream's own number."""
    return_scores: bool = False
    """Documents with their scores."""


class _Found(msgspec.Struct, frozen=True):
    result: list[msgspec.Raw] = []


class _Answered(msgspec.Struct, frozen=True):
    """The fields of a stored answer that this route needs."""

    ended: str
    reason: str = ""
    output: _Found = _Found()


_request = msgspec.json.Decoder(Retrieve)
_answer = msgspec.json.Decoder(_Answered)


async def post_retrieve(call: Call) -> Reply:
    """POST /retrieve and POST /t/{tenant}/{task}/retrieve."""
    proxy = call.proxy
    tenant, task = call.path_args or (DEFAULT_TENANT, DEFAULT_TASK)
    if not (is_name(tenant) and is_name(task)):
        raise BadRequest(what=f"tenant and task in the path: each must be {WORDS[NAME]}")
    request = decoded(_request, await call.body(proxy.settings.max_body_bytes))
    workflow = await proxy.tasks.workflow(tenant, task)
    submissions = _submissions(workflow, request)
    if len(proxy.waiters) + len(submissions) > proxy.settings.max_waiting:
        raise Overloaded(what="this replica has too many waiting callers")
    parts = [_Part(proxy, submitted) for submitted in submissions]
    try:
        return await _serve(call, parts)
    except (OutOfMemoryError, *TRANSIENT) as error:
        RETRIEVE.labels("failed").inc()
        what = MEMORY_FULL if isinstance(error, OutOfMemoryError) else "Valkey does not answer"
        raise Unavailable(what=what) from error
    finally:
        for part in parts:
            part.close()


class _Part:
    """One action of a call: some of its queries."""

    def __init__(self, proxy: ProxyState, submitted: ActionSubmitted) -> None:
        self._proxy = proxy
        self._submitted = submitted
        self._digest = digest_of_call(submitted, KIND)
        self._future: asyncio.Future[bytes] | None = None
        self._action = ""
        """Its action, once it may exist."""

    async def answered(self) -> list[msgspec.Raw]:
        """Return the documents of each query. Joins the action of an earlier call, or submits a new one.

        Raises:
            BadRequest: the task's stage cannot be executed.
            Overloaded: a bound is reached. Nothing was accepted.
            Unavailable: the upstream has failed, or the mesh has.
        """
        joined = await self._proxy.retries.join(self._digest)
        future = None if joined is None else await self._joined(joined)
        answer = _answer.decode(await (future or await self._submit(random_id())))
        if answer.ended == "ok":
            return answer.output.result
        self._action = ""  # a repeat asks again
        if answer.ended == "refused":
            raise BadRequest(what=f"task {self._submitted.task!r}: {answer.reason}")
        raise Unavailable(what=f"{answer.ended}: {answer.reason or 'no documents'}")

    async def _joined(self, action: str) -> asyncio.Future[bytes] | None:
        """Join an action that an earlier call left, perhaps before it was accepted. None: its answer has expired."""
        try:
            return await self._submit(action)
        except Conflict:
            self.close()
            return None

    async def _submit(self, action: str) -> asyncio.Future[bytes]:
        """Return the future of an action's answer. Submits it unless that was done before."""
        self._submitted = msgspec.structs.replace(self._submitted, action=action)
        self._action = action
        self._future = future = self._proxy.waiters.expect(action)
        try:
            accepted = await self._proxy.intake.submit(self._submitted)
        except (BadRequest, Conflict, NotFound, Overloaded):
            self._action = ""  # it does not exist
            raise
        if accepted.repeated:
            await self._proxy.waiters.look_up([action])
        return future

    async def leave(self) -> None:
        """Keep the action, or its documents, for the repeat of this call."""
        if self._action:
            await self._proxy.retries.leave(self._digest, self._action)

    async def leave_and_stop(self) -> None:
        """Like `leave`, in a stopping proxy."""
        if self._action:
            await self._proxy.retries.leave_and_stop(self._digest, self._action)

    def cancel(self) -> None:
        """Cancel the action: its caller has gone."""
        if self._action:
            self._proxy.retries.cancel(self._action, "its caller has gone")

    def close(self) -> None:
        """Stop to wait."""
        if self._future is not None:
            self._proxy.waiters.discard(self._submitted.action, self._future)
            self._future = None


async def _serve(call: Call, parts: list[_Part]) -> Reply:
    """Wait for all parts, for the limit, and for the end of the caller's connection."""
    limit_s = call.proxy.settings.retrieve_s
    gone: asyncio.Future[Any] = asyncio.create_task(call.gone(), name="caller")
    answers = [asyncio.create_task(part.answered(), name="retrieve") for part in parts]
    waiting: asyncio.Future[list[list[msgspec.Raw]]] = asyncio.gather(*answers)
    try:
        await asyncio.wait({gone, waiting}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            reply = Reply(200, _encoder.encode({"result": [each for part in waiting.result() for each in part]}))
            RETRIEVE.labels("answered").inc()
            return reply
        if gone.done():
            RETRIEVE.labels("disconnected").inc()
            for part in parts:
                part.cancel()
            return Reply(200, b"")
        RETRIEVE.labels("late").inc()
        await _leave(parts)
        raise Unavailable(what=f"no documents within {limit_s:g} s; the repeat of this call joins it")
    except (BadRequest, Unavailable, Overloaded, Conflict, NotFound):
        if waiting.done():
            RETRIEVE.labels("failed").inc()
            await _leave(parts)
        raise
    except asyncio.CancelledError:  # the server stops, and its grace period is over
        RETRIEVE.labels("stopped").inc()
        await asyncio.gather(*(part.leave_and_stop() for part in parts))
        raise Unavailable(what="this proxy is stopping; the repeat of this call joins it") from None
    finally:
        gone.cancel()
        for answer in answers:  # one failure ends `waiting`, but no other part
            answer.cancel()
        await asyncio.wait(answers)
        await asyncio.wait({waiting})
        if not waiting.cancelled():
            waiting.exception()


async def _leave(parts: list[_Part]) -> None:
    await asyncio.gather(*(part.leave() for part in parts))


def _submissions(workflow: Workflow, request: Retrieve) -> list[ActionSubmitted]:
    """Return the actions of one call.

    Raises:
        BadRequest: no queries, too many for the task, or a task of another form.
    """
    queries = [*request.queries, *([] if request.query is None else [request.query])]
    if not queries:
        raise BadRequest(what='send {"queries": ["..."]} or {"query": "..."}')
    if len(workflow.stages) != 1 or workflow.stages[0].template.kind != KIND:
        raise BadRequest(what=f"task {workflow.task!r} cannot retrieve: it needs one stage, of kind {KIND}")
    params = workflow.stages[0].template.params
    a_call = 1 if params.get("form") == "query" else int(params.get("queries_a_call", MOST_A_CALL))
    if len(queries) > a_call * MOST_ACTIONS:
        raise BadRequest(what=f"queries: task {workflow.task!r} takes at most {a_call * MOST_ACTIONS} in one call")
    given: dict[str, Any] = {"return_scores": request.return_scores}
    if request.topk is not None:
        given["topk"] = request.topk
    return [
        ActionSubmitted(
            action=random_id(),
            tenant=workflow.tenant,
            task=workflow.task,
            stages=workflow.resolve(msgspec.Raw(_encoder.encode({**given, "queries": some})), {}),
            budget_s=workflow.budget_s,
        )
        for some in (queries[start : start + a_call] for start in range(0, len(queries), a_call))
    ]


RETRIEVE_ROUTES = [
    HotRoute("POST", "/retrieve", post_retrieve),
    HotRoute("POST", "/t/{tenant}/{task}/retrieve", post_retrieve),
]
