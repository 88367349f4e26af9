"""Tasks as every replica sees them."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from services.proxy.records.task_registry import TaskRegistry
from shared.api.tasks import StageTemplate, Task
from shared.runtime.errors import BadRequest, NotFound
from tests.shared.bus.soon import soon


def task(*kinds: str, **rest: float) -> Task:
    return Task(stages=[StageTemplate(name=f"s{place}", kind=kind) for place, kind in enumerate(kinds)], **rest)  # type: ignore[arg-type]


@pytest.fixture
def registry(valkey: Redis) -> TaskRegistry:
    return TaskRegistry(valkey)


async def test_a_task_is_kept_as_it_was_declared(registry: TaskRegistry) -> None:
    declared = task("noop", "sleep", budget_s=12.5)

    view = await registry.put("ada", "t", declared)

    assert (view.name, view.tenant, view.version) == ("t", "ada", 1)
    assert Task.model_validate(view.model_dump(include=set(Task.model_fields))) == declared
    assert await registry.get("ada", "t") == view


async def test_a_task_that_nodes_would_always_refuse_is_refused(registry: TaskRegistry) -> None:
    coreless = Task(stages=[StageTemplate(name="run", kind="code.run", units={"cores": 0})])

    with pytest.raises(BadRequest, match="needs a core"):
        await registry.put("ada", "t", coreless)
    assert await registry.all("ada") == []


async def test_the_version_counts_changes_and_not_repeats(registry: TaskRegistry) -> None:
    versions = [(await registry.put("ada", "t", one)).version for one in (task("noop"), task("noop"), task("sleep"))]

    assert versions == [1, 1, 2]


async def test_an_explicit_default_is_no_change(registry: TaskRegistry) -> None:
    await registry.put("ada", "t", task("noop"))

    assert (await registry.put("ada", "t", task("noop", timeout_score=0.0))).version == 1


async def test_going_back_to_an_earlier_form_is_a_change(registry: TaskRegistry) -> None:
    for one in (task("noop"), task("sleep"), task("noop")):
        await registry.put("ada", "t", one)

    assert (await registry.get("ada", "t")).version == 3


async def test_tenants_do_not_see_each_others_tasks(registry: TaskRegistry) -> None:
    await registry.put("ada", "t", task("noop"))

    assert await registry.all("bob") == []
    with pytest.raises(NotFound):
        await registry.get("bob", "t")


async def test_all_tasks_come_by_name(registry: TaskRegistry) -> None:
    for name in ("t2", "t1"):
        await registry.put("ada", name, task("noop"))

    assert [view.name for view in await registry.all("ada")] == ["t1", "t2"]


async def test_a_deleted_task_is_gone_on_every_replica(registry: TaskRegistry) -> None:
    await registry.put("ada", "t", task("noop"))
    await registry.workflow("ada", "t")

    await registry.delete("ada", "t")

    assert await registry.all("ada") == []
    for asked in (registry.get, registry.workflow, registry.delete):
        with pytest.raises(NotFound, match="PUT /v1/tasks/t"):
            await asked("ada", "t")


async def test_a_workflow_is_the_task_made_ready(registry: TaskRegistry) -> None:
    await registry.put("ada", "t", task("noop", "sleep", budget_s=12.5))

    workflow = await registry.workflow("ada", "t")

    assert [stage.template.kind for stage in workflow.stages] == ["noop", "sleep"]
    assert (workflow.tenant, workflow.task, workflow.budget_s) == ("ada", "t", 12.5)


async def test_a_change_counts_at_once_where_it_was_made_and_soon_everywhere(
    registry: TaskRegistry, valkey: Redis
) -> None:
    await registry.put("ada", "t", task("noop"))
    elsewhere = TaskRegistry(valkey)
    for each in (registry, elsewhere):
        await each.workflow("ada", "t")

    await registry.put("ada", "t", task("sleep"))

    async def seen_elsewhere() -> bool:
        return (await elsewhere.workflow("ada", "t")).stages[0].template.kind == "sleep"

    assert (await registry.workflow("ada", "t")).stages[0].template.kind == "sleep"
    await soon(seen_elsewhere)


async def test_a_task_that_cannot_be_read_any_more_hides_no_other_and_can_be_replaced(
    registry: TaskRegistry, valkey: Redis
) -> None:
    await registry.put("ada", "good", task("noop"))
    for name in ("bad", "worse"):
        await registry.put("ada", name, task("noop"))
        await valkey.hset(f"task:ada:{name}", "task", '{"stages":[],"timeout_score":null}')

    assert [view.name for view in await registry.all("ada")] == ["good"]
    with pytest.raises(NotFound, match="declare it with PUT"):
        await registry.get("ada", "bad")
    assert (await registry.put("ada", "bad", task("sleep"))).stages[0].kind == "sleep"
    await registry.delete("ada", "worse")
    with pytest.raises(NotFound):
        await registry.delete("ada", "worse")
