"""Batches: open, read and end them; and the workflow that each was opened with."""

from __future__ import annotations

import asyncio

import msgspec
from pydantic import ValidationError
from redis.asyncio import Redis

from services.proxy.records import failures
from services.proxy.records.disk import StoreDisk, short_of_disk
from services.proxy.records.ids import Ids, random_id
from services.proxy.records.progress import Progress
from services.proxy.records.registries import Registries
from services.proxy.records.store import Store
from services.proxy.records.task_registry import TaskRegistry
from services.proxy.records.workflows import Workflow
from shared.api.batches import BatchOpening, BatchView
from shared.api.requests import RewardRequest
from shared.api.tasks import Task
from shared.bus import batches, trajectories
from shared.bus.batches import StoredBatch
from shared.bus.connection import ValkeyClock, with_retries
from shared.bus.quota_estimates import expected_amounts
from shared.bus.streams import newest
from shared.messages.actions import ActionSubmitted
from shared.messages.batches import BatchOpened, StagePlan
from shared.messages.targets import COMPLETIONS
from shared.runtime.errors import SHOWN_CHARS, BadRequest, Conflict, NotFound
from shared.runtime.units import Seconds
from shared.runtime.validation import decoded, explain_details

MOST_CACHED = 4096
RETRY_LIMIT_S: Seconds = 10.0
LOOKED_AT = 4096
"""Newest entries of `completions` that are searched for a batch's T. That is about seven minutes with a hundred open
batches whose T changes at each review."""


class BatchService:
    """The batches of the mesh, as this replica sees them."""

    def __init__(
        self,
        redis: Redis,
        store: Store,
        tasks: TaskRegistry,
        clock: ValkeyClock,
        ids: Ids,
        registries: Registries,
        *,
        disk: StoreDisk,
        keep_batch_s: Seconds,
        keep_deleted_s: Seconds = 300.0,
    ) -> None:
        """`disk`: while it is short, no batch is opened."""
        self._redis = redis
        self._store = store
        self._tasks = tasks
        self._clock = clock
        self._ids = ids
        self._registries = registries
        self._disk = disk
        self._keep_s = {"sealed": keep_batch_s, "cancelled": keep_deleted_s}
        self._workflows: dict[str, Workflow] = {}
        self._reading: dict[str, asyncio.Task[Workflow]] = {}

    async def open(self, tenant: str, task: str, opening: BatchOpening) -> tuple[BatchView, bool]:
        """Open a batch, once per key. It is the hint that a rollout has begun. Return the batch and whether it is new.

        Raises:
            BadRequest: an image comes from a registry that is not allowed.
            NotFound: no such task.
            Conflict: the key has opened a batch of another size.
            Overloaded: the stores' disk is short.
        """
        self._registries.check(opening.images)
        view = await self._tasks.get(tenant, task)
        declared = Task.model_validate(view.model_dump(include=set(Task.model_fields)))
        opened = BatchOpened(
            batch="b" + random_id(),
            tenant=tenant,
            task=task,
            size=opening.size or declared.batch_size,
            opened_at=self._clock.unix(),
            stages=await self._plans(Workflow.of(tenant, task, declared)),
            max_extra_delay_s=declared.max_extra_delay_s,
            resources=declared.trainer_resources,
        )
        shortage = self._disk.shortage()
        if shortage is not None and not await self._was_opened(tenant, task, opening.key or ""):
            raise short_of_disk(shortage)
        # Unset fields are left out, because a replica of an older version rejects fields that it does not know.
        fields = {"tenant": tenant, "task": task, "workflow": declared.model_dump_json(exclude_none=True)}

        async def attempt() -> batches.BatchOpeningResult:
            return await batches.open_batch(
                self._redis, opened, idempotency_key=opening.key or "", asked=opening.size, fields=fields
            )

        code, batch = await with_retries(attempt, what="opening a batch", limit_s=RETRY_LIMIT_S)
        if code == "conflict":
            raise Conflict(
                what=f"key {opening.key!r} opened {batch} with another size; repeat that size, or use a new key"
            )
        if opening.images:
            await trajectories.expect(self._redis, opening.images)
        return await self.view(batch), code == "opened"

    async def _plans(self, workflow: Workflow) -> list[StagePlan]:
        """Return the stages for the planner: learned amounts of quotas are those of now."""
        names = sorted(frozenset[str]().union(*(stage.learned for stage in workflow.stages)))

        async def read() -> dict[str, float]:
            return await expected_amounts(self._redis, workflow.tenant, workflow.task, names)

        learned = await with_retries(read, what="reading learned amounts", limit_s=RETRY_LIMIT_S) if names else {}
        return [stage.plan(learned) for stage in workflow.stages]

    async def _was_opened(self, tenant: str, task: str, key: str) -> bool:
        async def read() -> bool:
            return await batches.was_opened(self._redis, tenant, task, key)

        return bool(key) and await with_retries(read, what="looking for a batch", limit_s=RETRY_LIMIT_S)

    async def stored(self, batch: str) -> StoredBatch:
        """Return a batch's record.

        Raises:
            NotFound: it was never opened, or has expired.
        """
        found = await self._store.batch(batch)
        if found is None:
            raise NotFound(kind="batch", name=batch, hint="it was never opened, or its results have expired")
        return found

    async def view(self, batch: str) -> BatchView:
        """Return a batch with its progress, computed from its stored results. O(results)."""
        found = await self.stored(batch)
        progress = Progress()
        async for rows in self._store.results.pages(batch):
            for _, answer in rows:
                progress.add(answer)
        environments = await failures.environments(self._redis, batch)
        if found.ended_at is not None:
            return progress.view(found, None, environments=environments)
        stuck = (await self._store.stuck()).get(batch, 0)
        return progress.view(found, await self._expected(found), stuck, environments)

    async def _expected(self, batch: StoredBatch) -> float | None:
        """Return T of a running batch (Unix seconds): the planner's, else first arrival + the stages' timeouts."""
        for _, message in await newest(self._redis, COMPLETIONS, LOOKED_AT):
            if message.batch == batch.id:
                return message.at
        if batch.first_at is None:
            return None
        stages = _declared(batch).stages
        return batch.first_at + sum(stage.timeout_s for stage in stages)

    async def end(self, batch: str, state: str) -> BatchView:
        """Seal or cancel a batch. A cancelled batch expires soon, also if it had ended before.

        Raises:
            NotFound: there is no such batch.
            Conflict: it is to be sealed, and has ended otherwise.
        """
        expires_at_once = not round(self._keep_s[state])
        shown = await self.view(batch) if expires_at_once else None  # it cannot be read after the call

        async def attempt() -> str | None:
            return await batches.end_batch(self._redis, batch, state, keep_batch_s=self._keep_s[state])

        now = await with_retries(attempt, what="ending a batch", limit_s=RETRY_LIMIT_S)
        if now is None:
            raise NotFound(kind="batch", name=batch)
        if now not in (state, "complete") and (state, now) != ("cancelled", "abandoned"):
            raise Conflict(what=f"batch {batch} is already {now}")
        if shown is not None and await self._store.batch(batch) is None:
            return shown.model_copy(update={"state": now, "ended_at": shown.ended_at or self._clock.unix()})
        return await self.view(batch)

    def is_known(self, request: RewardRequest, default_batch: str | None = None) -> bool:
        """Return whether `reward` can resolve the request without a read."""
        return (request.batch or default_batch) in self._workflows and not self._ids.looks_up

    async def reward(self, tenant: str, request: RewardRequest, default_batch: str | None = None) -> ActionSubmitted:
        """Return a reward request as the journal stores it, with its workflow's stages filled in.

        Raises:
            BadRequest, NotFound: it is invalid, or names a batch or task that does not exist.
        """
        batch = request.batch or default_batch or ""
        if not batch and not request.task:
            raise BadRequest(what="set `batch`, or `task` for a request outside any batch")
        workflow = await self._workflow(batch) if batch else await self._tasks.workflow(tenant, request.task or "")
        if request.task is not None and request.task != workflow.task:
            given = request.task[:SHOWN_CHARS]
            raise BadRequest(what=f"batch {batch} belongs to task {workflow.task!r}, not {given!r}")
        return ActionSubmitted(
            action=await self._ids.of(workflow.tenant, workflow.task, batch, request.request_id),
            tenant=workflow.tenant,
            task=workflow.task,
            batch=batch,
            request=request.request_id or "",
            stages=workflow.resolve(request.params, request.stage_params),
            budget_s=workflow.budget_s,
            priority=request.priority,
            timeout_score=workflow.timeout_score,
            for_trajectory=(request.trajectory or "") if tenant == workflow.tenant else "",
        )

    async def _workflow(self, batch: str) -> Workflow:
        """Return a batch's workflow. It never changes, so concurrent first calls share one read."""
        known = self._workflows.get(batch)
        if known is not None:
            return known
        reading = self._reading.get(batch)
        if reading is None:
            reading = self._reading[batch] = asyncio.create_task(self._read_workflow(batch), name="read workflow")
            reading.add_done_callback(lambda _: self._reading.pop(batch))
        return await asyncio.shield(reading)

    async def _read_workflow(self, batch: str) -> Workflow:
        found = await self.stored(batch)
        workflow = Workflow.of(found.tenant, found.task, _declared(found))
        self._workflows[batch] = workflow
        while len(self._workflows) > MOST_CACHED:
            del self._workflows[next(iter(self._workflows))]
        return workflow


def _declared(batch: StoredBatch) -> Task:
    """Return the task as it was when the batch was opened.

    Raises:
        Conflict: it was declared under rules that no longer apply.
    """
    try:
        return Task.model_validate_json(batch.workflow)
    except ValidationError as error:
        raise Conflict(
            what=f"batch {batch.id} was opened with a workflow that is rejected now "
            f"({explain_details(error.errors()[0])}); declare the task again and open another batch"
        ) from error


def decode_reward(text: bytes, what: str = "") -> RewardRequest:
    """Decode one reward request. `what` names the text in messages.

    Raises:
        BadRequest: not JSON, or an invalid field.
    """
    return decoded(_reward, text, what)


_reward = msgspec.json.Decoder(RewardRequest)
