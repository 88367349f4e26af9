"""Opening batches: the workflow is stored unchanged, in fields that a replica of an older version also reads."""

from __future__ import annotations

import re

import msgspec
from redis.asyncio import Redis

from services.proxy.records.batch_service import BatchService
from services.proxy.records.disk import StoreDisk
from services.proxy.records.ids import Ids
from services.proxy.records.registries import Registries
from services.proxy.records.task_registry import TaskRegistry
from shared.api.batches import BatchOpening
from shared.api.tasks import StageTemplate, Task
from shared.bus.connection import command
from shared.messages.batches import BATCHES, BatchOpened
from shared.messages.environments import TRAJECTORIES, EnvironmentsExpected
from tests.services.proxy.mesh import StillClock
from tests.services.proxy.stores import store_over

SINCE = {"timeout_score", "error_score", "exception_score"}
"""Newer fields of a stage; an older release refuses them."""


async def kept(valkey: Redis, stage: StageTemplate) -> tuple[Task, Task, bytes]:
    """A task, its copy in a batch as read, and the stored bytes of that copy."""
    tasks = TaskRegistry(valkey)
    declared = Task(stages=[stage])
    await tasks.put("ada", "t", declared)
    store = store_over(valkey)
    clock = StillClock()
    service = BatchService(
        valkey,
        store,
        tasks,
        clock,
        await Ids.load(valkey, clock),
        Registries("docker.io"),
        disk=StoreDisk([], reserve_bytes=0),
        keep_batch_s=60.0,
    )
    view, _ = await service.open("ada", "t", BatchOpening())
    assert re.fullmatch("b[0-9a-f]{24}", view.id), "96 random bits"
    found = await store.batch(view.id)
    assert found is not None
    return declared, Task.model_validate_json(found.workflow), found.workflow


async def test_a_batch_keeps_the_task_it_was_opened_with(valkey: Redis) -> None:
    stage = StageTemplate(name="s", kind="code.run", params={"memory_mb": None}, timeout_score=-2.0)

    declared, read, _ = await kept(valkey, stage)

    assert read == declared


async def test_what_a_stage_leaves_open_is_not_written(valkey: Redis) -> None:
    declared, read, raw = await kept(valkey, StageTemplate(name="s", kind="code.run", params={"memory_mb": None}))

    (stage,) = msgspec.json.decode(raw)["stages"]
    assert (stage.keys() & SINCE, stage["params"]) == (set(), {"memory_mb": None})
    assert read == declared


async def test_images_that_its_trajectories_will_need_are_published(valkey: Redis) -> None:
    tasks = TaskRegistry(valkey)
    await tasks.put("ada", "t", Task(stages=[StageTemplate(name="s", kind="noop")]))
    clock = StillClock()
    service = BatchService(
        valkey,
        store_over(valkey),
        tasks,
        clock,
        await Ids.load(valkey, clock),
        Registries("docker.io"),
        disk=StoreDisk([], reserve_bytes=0),
        keep_batch_s=60.0,
    )

    await service.open("ada", "t", BatchOpening())
    await service.open("ada", "t", BatchOpening(images=["python:3.11", "b"]))

    rows = await command(valkey, "XRANGE", TRAJECTORIES.name, "-", "+")
    assert [TRAJECTORIES.decode(fields[1]) for _, fields in rows] == [EnvironmentsExpected(images=["python:3.11", "b"])]


async def test_the_planner_gets_the_amounts_of_quotas_that_are_learned(valkey: Redis) -> None:
    """A batch that opens later has what was learned until then."""
    stage = StageTemplate(name="s", kind="noop", quotas={"search": 2, "judge-tokens": "learned"})
    await kept(valkey, stage)
    await command(valkey, "HSET", "quotas:estimates", '["ada","t","judge-tokens"]', "[700.0]")
    await kept(valkey, stage)
    messages = [
        BATCHES.decode(fields[fields.index(b"m") + 1])
        for _, fields in await command(valkey, "XRANGE", BATCHES.name, "-", "+")
    ]
    plans = [one.stages[0].quotas for one in messages if isinstance(one, BatchOpened)]
    assert plans == [{"search": 2.0, "judge-tokens": 1.0}, {"search": 2.0, "judge-tokens": 700.0}]
