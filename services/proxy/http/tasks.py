"""/v1/tasks: declare, read, list and delete tasks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from services.proxy.state import CurrentState, Tenant
from shared.api.batches import BatchOpening, BatchView
from shared.api.tasks import Task, TaskList, TaskView
from shared.runtime.app import problem_responses
from shared.runtime.patterns import NAME

router = APIRouter(prefix="/v1/tasks", tags=["tasks"])

TaskName = Annotated[str, Path(pattern=NAME, description="Name of the task.")]


@router.get("", summary="All tasks", responses=problem_responses(422, 503))
async def list_tasks(proxy: CurrentState, tenant: Tenant) -> TaskList:
    return TaskList(tasks=await proxy.tasks.all(tenant))


@router.put(
    "/{task}",
    summary="Declare or change a task",
    responses=problem_responses(413, 422, 503),
    openapi_extra={"x-codegen-request-body-name": "body"},  # "task" is taken, by the path's parameter
)
async def put_task(task: TaskName, body: Task, proxy: CurrentState, tenant: Tenant) -> TaskView:
    """Open batches keep the version they were opened with. Declaring the same again changes nothing."""
    return await proxy.tasks.put(tenant, task, body)


@router.get("/{task}", summary="One task", responses=problem_responses(404, 422, 503))
async def get_task(task: TaskName, proxy: CurrentState, tenant: Tenant) -> TaskView:
    return await proxy.tasks.get(tenant, task)


@router.delete("/{task}", status_code=204, summary="Delete a task", responses=problem_responses(404, 422, 503))
async def delete_task(task: TaskName, proxy: CurrentState, tenant: Tenant) -> Response:
    """Its open batches continue."""
    await proxy.tasks.delete(tenant, task)
    return Response(status_code=204)


@router.post(
    "/{task}/batches",
    status_code=201,
    summary="Open a batch",
    responses={
        200: {"model": BatchView, "description": "Opened before, with this key"},
        **problem_responses(404, 409, 413, 422, 503),
    },
)
async def open_batch(
    task: TaskName, proxy: CurrentState, tenant: Tenant, response: Response, body: BatchOpening | None = None
) -> BatchView:
    """Opening a batch is the hint that a rollout has begun: the mesh prepares units for its requests.

    Opening again with the same `key` returns the same batch. The same `key` with another size is a conflict.
    """
    view, is_new = await proxy.batches.open(tenant, task, body or BatchOpening())
    response.status_code = 201 if is_new else 200
    return view
