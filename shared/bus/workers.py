"""Inference workers and pins of trajectories in Valkey. The leader of the routers decides; this stores it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.messages.base import ENTRY
from shared.messages.routing import (
    ROUTING,
    CallsDecided,
    CallsReported,
    ModelTrajectoryClosed,
    RegisteredWorker,
    RouterLeads,
    WorkersChanged,
)
from shared.policy.routing.model import WorkerState


class StoredView(msgspec.Struct, frozen=True, array_like=True):
    """What a worker does, as the leader sees it."""

    worker: str
    state: WorkerState
    reason: str
    in_flight: int
    waiting: int
    trajectories: int
    kv_reserved: int


_json = msgspec.json.Encoder().encode
_worker = msgspec.json.Decoder(RegisteredWorker).decode
_views = msgspec.json.Decoder(list[StoredView]).decode

VIEWS_KEPT_S: Final = 10
"""Seconds after which the view of a leader that is gone is no longer shown."""
MOST_WORKERS: Final = 4096
"""Workers of the mesh."""


async def read_workers(redis: Redis) -> dict[str, RegisteredWorker]:
    """Return all workers by id."""
    flat = await command(redis, "HVALS", keys.WORKERS)
    return {worker.id: worker for worker in map(_worker, flat)}


async def store_worker(redis: Redis, worker: RegisteredWorker) -> None:
    """Store a worker, and wake all routers."""
    await command(redis, "HSET", keys.WORKERS, worker.id, _json(worker))
    await publish(redis, WorkersChanged())


async def delete_worker(redis: Redis, worker: str) -> bool:
    """Delete a worker, and wake all routers. False: there was none."""
    known = await command(redis, "HDEL", keys.WORKERS, worker)
    await publish(redis, WorkersChanged())
    return bool(known)


Announcement = RouterLeads | CallsReported | CallsDecided | WorkersChanged | ModelTrajectoryClosed


async def publish(redis: Redis, message: Announcement) -> None:
    """Send a message to all routers."""
    await command(redis, "XADD", ROUTING.name, "MAXLEN", "~", ROUTING.maxlen, "*", ENTRY, ROUTING.encode(message))


async def read_pins(redis: Redis) -> dict[str, str]:
    """Return the worker of each pinned trajectory. O(pins)."""
    flat = await command(redis, "HGETALL", keys.ROUTER_PINS)
    return {name.decode(): worker.decode() for name, worker in zip(flat[::2], flat[1::2], strict=True)}


async def store_pins(redis: Redis, pins: Mapping[str, str]) -> None:
    """Store pins; an empty worker removes one. A pin that is wrong costs a prefill, so it is not fenced."""
    kept: list[str] = [part for name, worker in pins.items() if worker for part in (name, worker)]
    gone: Sequence[str] = [name for name, worker in pins.items() if not worker]
    if kept:
        await command(redis, "HSET", keys.ROUTER_PINS, *kept)
    if gone:
        await command(redis, "HDEL", keys.ROUTER_PINS, *gone)


async def store_views(redis: Redis, views: Sequence[StoredView]) -> None:
    """Store what workers do, for `VIEWS_KEPT_S`."""
    await command(redis, "SET", keys.WORKER_VIEWS, _json(views), "EX", VIEWS_KEPT_S)


async def read_views(redis: Redis) -> dict[str, StoredView]:
    """Return what each worker does, by its id; empty while no router leads."""
    stored = await command(redis, "GET", keys.WORKER_VIEWS)
    return {} if stored is None else {view.worker: view for view in _views(stored)}
