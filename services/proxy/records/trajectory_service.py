"""Trajectories: open, read and close them. A trajectory's environment never changes, so it is read once."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple, cast

import msgspec
from redis.asyncio import Redis

from services.proxy.records.disk import StoreDisk, short_of_disk
from services.proxy.records.environment_actions import stage_of
from services.proxy.records.ids import Ids, random_id
from services.proxy.records.intake import NO_TRAJECTORY
from services.proxy.records.registries import Registries
from shared.api.trajectories import TrajectoryAction, TrajectoryRequest, TrajectoryState, TrajectoryView
from shared.bus import trajectories
from shared.bus.connection import command, with_retries
from shared.messages.actions import ActionSubmitted
from shared.messages.environments import EnvironmentSpec
from shared.runtime.errors import BadRequest, Conflict, NotFound, Overloaded
from shared.runtime.units import Seconds

MOST_CACHED = 16_384
MOST_SPEC_BYTES = 64 << 10
"""The specification is sent with every action. Write or upload larger set-ups as files."""
RETRY_LIMIT_S = 10.0
LOOKED_AT = 256
"""Records read in one round trip for a list."""

_encode = msgspec.msgpack.Encoder().encode
_spec = msgspec.msgpack.Decoder(EnvironmentSpec)


class OpenTrajectory(NamedTuple):
    """The constant fields of a trajectory that its actions need."""

    tenant: str
    task: str
    node_class: str
    environment: EnvironmentSpec


class TrajectoryService:
    """The trajectories of the mesh, as this replica sees them."""

    def __init__(
        self, redis: Redis, ids: Ids, registries: Registries, *, most: int, keep_s: Seconds, disk: StoreDisk
    ) -> None:
        """`most`: open at once in the whole mesh; `keep_s`: retention of a record after its end.

        `disk`: while it is short, no trajectory is opened.
        """
        self._redis = redis
        self._ids = ids
        self._registries = registries
        self._disk = disk
        self._most = most
        self._keep_s = keep_s
        self._opened: dict[str, OpenTrajectory] = {}

    async def open(self, tenant: str, request: TrajectoryRequest) -> tuple[TrajectoryView, bool]:
        """Open a trajectory, once per `request_id`. Return the trajectory and whether it is new.

        Raises:
            BadRequest: its environment is too large to be sent with every action, or its image comes from a registry
                that is not allowed.
            NotFound: the tenant has no such batch.
            Conflict: the same `request_id` has opened another trajectory.
            Overloaded: too many are open, or the stores' disk is short.
        """
        self._registries.check([request.environment.image])
        spec = _encode(request.environment)
        if len(spec) > MOST_SPEC_BYTES:
            raise BadRequest(
                what=f"the environment takes {len(spec)} bytes, more than {MOST_SPEC_BYTES}: upload files instead"
            )
        name = "t" + random_id()
        asked = request.request_id
        if request.batch:
            await self._check_batch(tenant, request.batch)
        fields = {"tenant": tenant, "task": request.task or "", "group": request.group, "request": asked or ""}
        if request.batch:
            fields["batch"] = request.batch
        shortage = self._disk.shortage()

        async def attempt() -> trajectories.TrajectoryOpeningResult:
            return await trajectories.open_trajectory(
                self._redis,
                name,
                request.environment,
                idempotency_key=asked or "",
                digest=blake2b(_encode(request), digest_size=16).digest(),
                most=0 if shortage else self._most,
                keep_s=self._keep_s,
                node_class=request.node_class,
                fields={**fields, "class": request.node_class, "spec": spec},
            )

        code, known = await with_retries(attempt, what="opening a trajectory", limit_s=RETRY_LIMIT_S)
        if code == "conflict":
            raise Conflict(what=f"request_id {asked!r} opened {known} with another body; use a new one")
        if code == "full" and shortage:
            raise short_of_disk(shortage)
        if code == "full":
            raise Overloaded(what=f"{self._most} trajectories are open; close those that are done", retry_after_s=5.0)
        return await self.view(known), code == "opened"

    async def view(self, trajectory: str) -> TrajectoryView:
        """Return a trajectory's current state.

        Raises:
            NotFound: it was never opened, or ended long ago.
        """
        (found,) = await self._views([trajectory])
        if found is None:
            raise unknown(trajectory)
        return found

    async def all(self, state: TrajectoryState, limit: int) -> list[TrajectoryView]:
        """Return the newest trajectories in this state, at most `limit`."""
        key = "trajectories:open" if state == "open" else "trajectories:ended"
        views: list[TrajectoryView] = []
        for start in range(0, self._most, LOOKED_AT):
            names = await command(self._redis, "ZREVRANGE", key, start, start + LOOKED_AT - 1)
            views += [one for one in await self._views(name.decode() for name in names) if one and one.state == state]
            if len(names) < LOOKED_AT or len(views) >= limit:
                break
        return views[:limit]

    async def close(self, trajectory: str) -> TrajectoryView:
        """End a trajectory: cancel its unanswered actions and end its environment. No effect if it has ended.

        Raises:
            NotFound: there is no such trajectory.
        """

        async def attempt() -> bool:
            return await trajectories.close_trajectory(self._redis, trajectory, "its trainer has closed it")

        if not await with_retries(attempt, what="closing a trajectory", limit_s=RETRY_LIMIT_S):
            raise unknown(trajectory)
        return await self.view(trajectory)

    async def action(self, trajectory: str, request: TrajectoryAction) -> ActionSubmitted:
        """Return one of its actions as the journal stores it. The submission checks whether the trajectory is open.

        Raises:
            BadRequest: it is invalid.
            NotFound: there is no such trajectory.
        """
        opened = await self.opened(trajectory)
        return ActionSubmitted(
            action=await self._ids.of(opened.tenant, "", trajectory, request.request_id),
            tenant=opened.tenant,
            task=opened.task,
            request=request.request_id or "",
            stages=(stage_of(request, opened.node_class),),
            budget_s=request.budget_s,
            priority=request.priority,
            trajectory=trajectory,
            environment=opened.environment,
        )

    async def opened(self, trajectory: str) -> OpenTrajectory:
        """Return the constant fields of a trajectory.

        Raises:
            NotFound: there is no such trajectory.
        """
        known = self._opened.get(trajectory)
        return known if known is not None else await self._read(trajectory)

    async def _read(self, trajectory: str) -> OpenTrajectory:
        async def read() -> list[bytes | None]:
            fields = ("tenant", "task", "class", "spec")
            reply: list[bytes | None] = await command(self._redis, "HMGET", f"trajectory:{trajectory}", *fields)
            return reply

        tenant, task, node_class, spec = await with_retries(read, what="reading a trajectory", limit_s=RETRY_LIMIT_S)
        if tenant is None or task is None or node_class is None or spec is None:
            raise unknown(trajectory)
        opened = OpenTrajectory(tenant.decode(), task.decode(), node_class.decode(), _spec.decode(spec))
        self._opened[trajectory] = opened
        while len(self._opened) > MOST_CACHED:
            del self._opened[next(iter(self._opened))]
        return opened

    async def _check_batch(self, tenant: str, batch: str) -> None:
        async def read() -> bytes | None:
            owner: bytes | None = await command(self._redis, "HGET", f"batch:{batch}", "tenant")
            return owner

        owner = await with_retries(read, what="reading a batch", limit_s=RETRY_LIMIT_S)
        if owner != tenant.encode():
            raise NotFound(kind="batch", name=batch, hint="open it first, for the same tenant; or leave `batch` out")

    async def _views(self, names: Iterable[str]) -> list[TrajectoryView | None]:
        listed = list(names)

        async def read() -> list[list[bytes]]:
            pipe = self._redis.pipeline(transaction=False)
            for name in listed:
                pipe.hgetall(f"trajectory:{name}")
            return await pipe.execute()

        rows = await with_retries(read, what="reading trajectories", limit_s=RETRY_LIMIT_S) if listed else []
        fields = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
        return [_view(name, each) if each else None for name, each in zip(listed, fields, strict=True)]


def unknown(trajectory: str) -> NotFound:
    """Return the error for a trajectory that the store does not have."""
    return NotFound(kind="trajectory", name=trajectory[:64], hint=NO_TRAJECTORY)


def _view(name: str, fields: dict[bytes, bytes]) -> TrajectoryView:
    return TrajectoryView(
        id=name,
        state=cast("TrajectoryState", fields[b"state"].decode()),
        reason=fields[b"reason"].decode(),
        tenant=fields[b"tenant"].decode(),
        task=fields[b"task"].decode() or None,
        batch=fields[b"batch"].decode() if b"batch" in fields else None,
        group=fields[b"group"].decode(),
        request_id=fields[b"request"].decode() or None,
        node_class=fields[b"class"].decode(),
        node=fields[b"node"].decode() if b"node" in fields else None,
        environment=msgspec.structs.asdict(_spec.decode(fields[b"spec"])),
        opened_at=int(fields[b"opened_ms"]) / 1000,
        active_at=int(fields[b"active_ms"]) / 1000,
        ended_at=int(fields[b"ended_ms"]) / 1000 if b"ended_ms" in fields else None,
    )
