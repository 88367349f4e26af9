"""Tasks, stored in Valkey (durable like the journal) and cached briefly in this process."""

from __future__ import annotations

import asyncio

from pydantic import ValidationError
from redis.asyncio import Redis

from services.proxy.records.workflows import Workflow
from shared.api.tasks import Task, TaskView
from shared.bus import tasks
from shared.bus.connection import with_retries
from shared.runtime import log
from shared.runtime.errors import SHOWN_CHARS, NotFound
from shared.runtime.units import Seconds

_log = log.get(__name__)

CACHED_S: Seconds = 1.0
"""For this time another replica may use a task's former version for requests outside batches."""
MOST_CACHED = 1024


class TaskRegistry:
    """Tasks by tenant and name."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._cached: dict[tuple[str, str], tuple[Seconds, Workflow]] = {}

    async def put(self, tenant: str, name: str, task: Task) -> TaskView:
        """Declare a task, or change it. Open batches keep the version they were opened with.

        Raises:
            BadRequest: nodes would reject every request of it.
        """
        Workflow.of(tenant, name, task).check()

        async def write() -> int:
            return await tasks.put_task(self._redis, tenant, name, task.model_dump_json(exclude_unset=True))

        current = await self._read(tenant, name)
        if current is not None and current[0] == task:
            return _view(tenant, name, *current)
        version = await with_retries(write, what="storing a task", limit_s=10.0)
        self._cached.pop((tenant, name), None)
        return _view(tenant, name, task, version)

    async def get(self, tenant: str, name: str) -> TaskView:
        """Return one task.

        Raises:
            NotFound: it was never declared, or deleted.
        """
        current = await self._read(tenant, name)
        if current is None:
            raise _unknown(tenant, name)
        return _view(tenant, name, *current)

    async def all(self, tenant: str) -> list[TaskView]:
        """Return every task of a tenant, by name."""
        names = await tasks.task_names(self._redis, tenant)
        found = [(name, await self._read(tenant, name)) for name in names]
        return [_view(tenant, name, *current) for name, current in found if current is not None]

    async def delete(self, tenant: str, name: str) -> None:
        """Delete a task. Its open batches continue.

        Raises:
            NotFound: there is no such task.
        """
        deleted = await tasks.delete_task(self._redis, tenant, name)
        self._cached.pop((tenant, name), None)
        if not deleted:
            raise _unknown(tenant, name)

    async def workflow(self, tenant: str, name: str) -> Workflow:
        """Return a task's workflow, at most `CACHED_S` old.

        Raises:
            NotFound: there is no such task.
        """
        now = asyncio.get_running_loop().time()
        cached = self._cached.get((tenant, name))
        if cached is not None and now - cached[0] < CACHED_S:
            return cached[1]
        workflow = Workflow.of(tenant, name, await self.get(tenant, name))
        self._cached[tenant, name] = (now, workflow)
        while len(self._cached) > MOST_CACHED:
            del self._cached[next(iter(self._cached))]
        return workflow

    async def _read(self, tenant: str, name: str) -> tuple[Task, int] | None:
        async def read() -> tasks.StoredTask | None:
            return await tasks.read_task(self._redis, tenant, name)

        stored = await with_retries(read, what="reading a task", limit_s=10.0)
        if stored is None:
            return None
        try:
            return Task.model_validate_json(stored.task), stored.version
        except ValidationError as error:  # declared under older rules; it can only be declared again or deleted
            _log.warning("task_unreadable", tenant=tenant, task=name, error=str(error))
            return None


def _unknown(tenant: str, name: str) -> NotFound:
    hint = f"declare it with PUT /v1/tasks/{name[:SHOWN_CHARS]} and Treadle-Tenant: {tenant[:SHOWN_CHARS]}"
    return NotFound(kind="task", name=name, hint=hint)


def _view(tenant: str, name: str, task: Task, version: int) -> TaskView:
    return TaskView(**dict(task), name=name, tenant=tenant, version=version)
