"""Trajectories: open, read and close them. A trajectory's environment never changes, so it is read once."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import cast

import msgspec
from redis.asyncio import Redis

from services.proxy.records.disk import StoreDisk, short_of_disk
from services.proxy.records.environment_actions import stage_of
from services.proxy.records.ids import Ids, random_id
from services.proxy.records.intake import NO_TRAJECTORY, trajectory_ended
from services.proxy.records.registries import Registries
from shared.api.trajectories import (
    ModelAccess,
    TrajectoryAction,
    TrajectoryChange,
    TrajectoryRequest,
    TrajectoryState,
    TrajectoryView,
)
from shared.bus import trajectories, workers
from shared.bus.batches import batch_tenant
from shared.bus.connection import with_retries
from shared.bus.router_keys import ModelKeys
from shared.bus.routers import RouterAddress
from shared.bus.trajectories import OpenedTrajectory
from shared.messages.actions import ActionSubmitted
from shared.messages.routing import ModelTrajectoryClosed
from shared.runtime.errors import BadRequest, Conflict, NotFound, Overloaded
from shared.runtime.units import Seconds

MOST_CACHED = 16_384
MOST_SPEC_BYTES = 64 << 10
"""The specification is sent with every action. Write or upload larger set-ups as files."""
RETRY_LIMIT_S = 10.0
LOOKED_AT = 256
"""Records read in one round trip for a list."""

_encode = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode


class TrajectoryService:
    """The trajectories of the mesh, as this replica sees them."""

    def __init__(
        self,
        redis: Redis,
        ids: Ids,
        registries: Registries,
        model_keys: ModelKeys,
        *,
        most: int,
        keep_s: Seconds,
        disk: StoreDisk,
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
        self._model_keys = model_keys
        self._routers = RouterAddress(redis)
        self._opened: dict[str, OpenedTrajectory] = {}

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
        if request.sampling:
            fields["sampling"] = _json(request.sampling).decode()
        if request.record:
            fields["record"] = request.record
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
        opened = await self.view(known)
        return msgspec.structs.replace(opened, model=await self._model_access(known)), code == "opened"

    async def _model_access(self, trajectory: str) -> ModelAccess | None:
        """Return access to the trajectory's model; None if no router runs."""
        url = await self._routers.address()
        if url is None:
            return None
        return ModelAccess(base_url=f"{url}/r/{trajectory}/v1", api_key=self._model_keys.of(trajectory))

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
        views: list[TrajectoryView] = []
        for start in range(0, self._most, LOOKED_AT):
            is_open = state == "open"
            names = await trajectories.newest_trajectories(self._redis, start, LOOKED_AT, is_open=is_open)
            views += [one for one in await self._views(names) if one and one.state == state]
            if len(names) < LOOKED_AT or len(views) >= limit:
                break
        return views[:limit]

    async def change(self, trajectory: str, change: TrajectoryChange) -> TrajectoryView:
        """Change an open trajectory: its priority applies to its unanswered and to its later actions.

        Raises:
            NotFound: there is no such trajectory.
            Conflict: it has ended.
        """

        async def attempt() -> trajectories.PriorityReceipt:
            return await trajectories.set_priority(self._redis, trajectory, change.priority)

        code, how = await with_retries(attempt, what="changing a trajectory", limit_s=RETRY_LIMIT_S)
        if code == "unknown":
            raise unknown(trajectory)
        if code == "ended":
            raise trajectory_ended(trajectory, how)
        return await self.view(trajectory)

    async def close(self, trajectory: str) -> TrajectoryView:
        """End a trajectory: cancel its unanswered actions and end its environment. No effect if it has ended.

        Raises:
            NotFound: there is no such trajectory.
        """

        async def attempt() -> bool:
            return await trajectories.close_trajectory(self._redis, trajectory, "its trainer has closed it")

        if not await with_retries(attempt, what="closing a trajectory", limit_s=RETRY_LIMIT_S):
            raise unknown(trajectory)
        closed = await self.view(trajectory)
        if await self._routers.address() is not None:
            await workers.publish(self._redis, ModelTrajectoryClosed(trajectory=trajectory, tenant=closed.tenant))
        return closed

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

    async def opened(self, trajectory: str) -> OpenedTrajectory:
        """Return the constant fields of a trajectory.

        Raises:
            NotFound: there is no such trajectory.
        """
        known = self._opened.get(trajectory)
        return known if known is not None else await self._read(trajectory)

    async def _read(self, trajectory: str) -> OpenedTrajectory:
        async def read() -> OpenedTrajectory | None:
            return await trajectories.read_opened(self._redis, trajectory)

        opened = await with_retries(read, what="reading a trajectory", limit_s=RETRY_LIMIT_S)
        if opened is None:
            raise unknown(trajectory)
        self._opened[trajectory] = opened
        while len(self._opened) > MOST_CACHED:
            del self._opened[next(iter(self._opened))]
        return opened

    async def _check_batch(self, tenant: str, batch: str) -> None:
        async def read() -> str | None:
            return await batch_tenant(self._redis, batch)

        owner = await with_retries(read, what="reading a batch", limit_s=RETRY_LIMIT_S)
        if owner != tenant:
            raise NotFound(kind="batch", name=batch, hint="open it first, for the same tenant; or leave `batch` out")

    async def _views(self, names: Sequence[str]) -> list[TrajectoryView | None]:
        async def read() -> list[trajectories.TrajectoryRecord | None]:
            return await trajectories.read_records(self._redis, names)

        records = await with_retries(read, what="reading trajectories", limit_s=RETRY_LIMIT_S)
        return [None if record is None else _view(record) for record in records]


def unknown(trajectory: str) -> NotFound:
    """Return the error for a trajectory that the store does not have."""
    return NotFound(kind="trajectory", name=trajectory[:64], hint=NO_TRAJECTORY)


def _view(record: trajectories.TrajectoryRecord) -> TrajectoryView:
    return TrajectoryView(
        id=record.id,
        state=cast("TrajectoryState", record.state),
        reason=record.reason,
        tenant=record.tenant,
        task=record.task or None,
        batch=record.batch,
        group=record.group,
        request_id=record.request or None,
        node_class=record.node_class,
        node=record.node,
        environment=msgspec.structs.asdict(record.environment),
        opened_at=record.opened_at,
        active_at=record.active_at,
        ended_at=record.ended_at,
        priority=record.priority,
        record="tokens" if record.record == "tokens" else None,
    )
