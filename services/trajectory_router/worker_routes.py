"""`/workers`: register, drain and remove inference engines. For operators."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from hashlib import blake2b
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Request

from services.trajectory_router.detection import Detected
from services.trajectory_router.state import RouterState, state_of
from shared.api.workers import (
    ENGINE_URL,
    ENGINE_URL_CHARS,
    WorkerAccepted,
    WorkerAddresses,
    WorkerList,
    WorkerRequest,
    WorkerView,
)
from shared.bus import workers as stored
from shared.bus.workers import MOST_WORKERS
from shared.messages.routing import RegisteredWorker
from shared.runtime.app import problem_responses
from shared.runtime.errors import Conflict, Forbidden, NotFound, Unavailable

DETECT_S = 30.0
"""Time for which a registration waits for an engine that is starting."""
PAUSE_S = 0.5


async def operator(request: Request) -> None:
    """Let operators pass: by key, or without a key from this machine.

    Raises:
        Forbidden: it is no operator.
    """
    key = state_of(request).settings.operator_key
    if key is None:
        host = request.client.host if request.client is not None else ""
        if not host or not ipaddress.ip_address(host).is_loopback:
            raise Forbidden(what="without TRAJECTORY_ROUTER_OPERATOR_KEY, /workers answers on this machine only")
        return
    given = request.headers.get("authorization", "")
    if not hmac.compare_digest(given.encode(), f"Bearer {key.get_secret_value()}".encode()):
        raise Forbidden(what="/workers needs the operator's key: `Authorization: Bearer <key>`")


router = APIRouter(tags=["workers"], dependencies=[Depends(operator)], responses=problem_responses(403, 422))
State = Annotated[RouterState, Depends(state_of)]
EngineUrl = Annotated[
    str, Query(pattern=ENGINE_URL, max_length=ENGINE_URL_CHARS, description="Address of the engine: http://HOST:PORT")
]


def worker_id(url: str) -> str:
    """Return the id of the worker at an address."""
    return blake2b(url.encode(), digest_size=6).hexdigest()


@router.post("/workers", status_code=202, responses=problem_responses(409, 503))
async def add_worker(body: WorkerRequest, state: State) -> WorkerAccepted:
    """Register an engine. It gets calls at once. After a restart, register it again."""
    url = body.url.rstrip("/")
    detected = await _detected(state, url)
    known = (await stored.read_workers(state.redis)).get(worker_id(url))
    if known is None and len(state.workers.by_id) >= MOST_WORKERS:
        raise Conflict(what=f"{MOST_WORKERS} workers are registered; remove those that are gone")
    worker = RegisteredWorker(
        id=worker_id(url),
        url=url,
        engine=body.engine or detected.engine,
        models=[body.model_id] if body.model_id else detected.models,
        most_calls=body.most_calls or detected.most_calls,
        kv_tokens=body.kv_tokens or detected.kv_tokens,
        registered_at=state.clock.unix(),
        serial=1 if known is None else known.serial + 1,
        labels=body.labels,
    )
    await stored.store_worker(state.redis, worker)
    await state.leadership.refresh_workers()  # a call that follows at once does not wait for the message
    return _accepted(worker, "registered" if known is None else "registered again")


async def _detected(state: RouterState, url: str) -> Detected:
    loop = asyncio.get_running_loop()
    end = loop.time() + DETECT_S
    while (detected := await state.detector.detect(url)) is None:
        if loop.time() + PAUSE_S > end:
            raise Unavailable(what=f"{url} does not answer GET /v1/models; register it when it serves")
        await asyncio.sleep(PAUSE_S)
    return detected


@router.get("/workers")
async def list_workers(state: State) -> WorkerList:
    """List the engines, and what each does."""
    registered = await stored.read_workers(state.redis)
    views = await stored.read_views(state.redis)
    workers = [_view(worker, views.get(worker.id)) for worker in registered.values()]
    return WorkerList(workers=workers, total=len(workers))


@router.get("/workers/{worker:path}", responses=problem_responses(404))
async def read_worker(worker: str, state: State) -> WorkerView:
    """Read one engine, by its id or its address."""
    found = await _find(state, worker)
    return _view(found, (await stored.read_views(state.redis)).get(found.id))


@router.post("/workers/{worker:path}/drain", status_code=202, responses=problem_responses(404))
async def drain_worker(worker: str, state: State) -> WorkerAccepted:
    """Drain an engine: it finishes its calls and gets no new ones. Register it again to end this."""
    found = await _find(state, worker)
    drained = msgspec.structs.replace(found, drained=True)
    await stored.store_worker(state.redis, drained)
    return _accepted(drained, "draining")


@router.delete("/workers/{worker:path}", status_code=202, responses=problem_responses(404))
async def remove_worker(worker: str, state: State) -> WorkerAccepted:
    """Remove an engine, by its id or its URL-encoded address. Its running calls go on to their end."""
    found = await _find(state, worker)
    await stored.delete_worker(state.redis, found.id)
    return _accepted(found, "removed")


@router.post("/add_worker", status_code=202, responses=problem_responses(409, 503))
async def add_worker_by_query(url: EngineUrl, state: State) -> WorkerAccepted:
    """Register an engine, in the form of slime's router: `POST /add_worker?url=...`."""
    return await add_worker(WorkerRequest.model_validate({"url": url}), state)


@router.post("/remove_worker", status_code=202, responses=problem_responses(404))
async def remove_worker_by_query(url: EngineUrl, state: State) -> WorkerAccepted:
    """Remove an engine, in the form of slime's router."""
    return await remove_worker(url, state)


@router.get("/list_workers")
async def list_addresses(state: State) -> WorkerAddresses:
    """List the addresses of the engines, in the form of slime's router."""
    return WorkerAddresses(urls=[worker.url for worker in (await stored.read_workers(state.redis)).values()])


async def _find(state: RouterState, reference: str) -> RegisteredWorker:
    registered = await stored.read_workers(state.redis)
    found = registered.get(reference) or registered.get(worker_id(reference.rstrip("/")))
    if found is None:
        raise NotFound(kind="worker", name=reference, hint="GET /workers lists them")
    return found


def _accepted(worker: RegisteredWorker, message: str) -> WorkerAccepted:
    return WorkerAccepted(worker_id=worker.id, location=f"/workers/{worker.id}", url=worker.url, message=message)


def _view(worker: RegisteredWorker, seen: stored.StoredView | None) -> WorkerView:
    return WorkerView(
        id=worker.id,
        url=worker.url,
        engine=worker.engine,
        models=worker.models,
        state=None if seen is None else seen.state,
        reason="" if seen is None else seen.reason,
        is_healthy=seen is not None and seen.state in ("ready", "probing"),
        drained=worker.drained,
        most_calls=worker.most_calls,
        in_flight=0 if seen is None else seen.in_flight,
        waiting=0 if seen is None else seen.waiting,
        trajectories=0 if seen is None else seen.trajectories,
        kv_tokens=worker.kv_tokens,
        kv_reserved=0 if seen is None else seen.kv_reserved,
        labels=worker.labels,
    )
