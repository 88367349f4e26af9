"""Calls of the proxy: order, cancelling, sealing, repeats, bounds. One real mesh with one core."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from tests.e2e.proxy_calls import SPIN, WAIT_S, Json, call, declare, http, mesh, open_batch, results, submit
from tests.shared.bus.soon import soon

__all__ = ["http", "mesh"]


async def start_spinning(http: aiohttp.ClientSession) -> str:
    """An action that holds the only core until the test ends it."""
    body = {"kind": "code.run", "params": {"code": SPIN, "run_timeout_s": 100}, "timeout_s": 120}
    status, standing = await call(http, "POST", "/v1/actions", json=body)
    assert status == 202, standing
    async with asyncio.timeout(WAIT_S):
        while (await call(http, "GET", f"/v1/actions/{standing['id']}?wait=0.05"))[1]["state"] != "granted":
            pass
    return str(standing["id"])


async def test_the_batch_that_is_due_first_is_served_first(http: aiohttp.ClientSession) -> None:
    await declare(http, "patient", timeout_s=300)
    await declare(http, "urgent", timeout_s=5)
    spinning = await start_spinning(http)
    late = await open_batch(http, "patient", size=3)
    await submit(http, late, {f"late-{n}": "print(1)" for n in range(3)})
    soon = await open_batch(http, "urgent", size=3)
    await submit(http, soon, {f"soon-{n}": "print(1)" for n in range(3)})
    await call(http, "DELETE", f"/v1/actions/{spinning}")
    of_late, of_soon = await asyncio.gather(results(http, late), results(http, soon))
    finished_late = [int(line["cursor"].partition("-")[0]) for line in of_late]
    finished_soon = [int(line["cursor"].partition("-")[0]) for line in of_soon]
    assert max(finished_soon) <= min(finished_late)
    assert [line["request_id"] for line in of_soon] == ["soon-0", "soon-1", "soon-2"], "by arrival inside a batch"


async def test_cancelling_a_running_action_kills_its_process_and_frees_its_core(http: aiohttp.ClientSession) -> None:
    spinning = await start_spinning(http)
    status, _ = await call(http, "DELETE", f"/v1/actions/{spinning}")
    assert status in (200, 202)
    body = {"kind": "code.run", "params": {"code": "print('free')"}}
    status, answer = await call(http, "POST", f"/v1/actions?wait={WAIT_S}", json=body)
    assert (status, answer["output"]["run_result"]["stdout"]) == (200, "free\n")
    status, cancelled = await call(http, "GET", f"/v1/actions/{spinning}?wait={WAIT_S}")
    assert (status, cancelled["ended"], cancelled["mask"], cancelled.get("score")) == (200, "cancelled", True, None)


async def test_cancelling_a_batch_answers_what_is_left_and_keeps_what_there_is(http: aiohttp.ClientSession) -> None:
    await declare(http, "dropped")
    batch = await open_batch(http, "dropped", size=4)
    await submit(http, batch, {"done": "print(1)"})
    async with asyncio.timeout(WAIT_S):
        async with http.get(f"/v1/batches/{batch}/results?follow=true") as response:
            assert json.loads(await response.content.readline())["request_id"] == "done"
    await submit(http, batch, {"running": SPIN, "queued": SPIN})
    status, view = await call(http, "DELETE", f"/v1/batches/{batch}")
    assert (status, view["state"]) == (200, "cancelled")
    ended = {line["request_id"]: line["ended"] for line in await results(http, batch)}
    assert ended == {"done": "ok", "running": "cancelled", "queued": "cancelled"}
    status, problem = await call(http, "POST", f"/v1/rewards?batch={batch}", json={"params": {"code": ""}})
    assert (status, problem["title"]) == (409, "Conflict")


async def test_a_sealed_batch_is_complete_with_what_it_has(http: aiohttp.ClientSession) -> None:
    await declare(http, "short")
    batch = await open_batch(http, "short", size=100)
    await submit(http, batch, {"a": "print(1)", "b": "print(2)"})
    status, view = await call(http, "POST", f"/v1/batches/{batch}/seal")
    assert (status, view["size"]) == (200, 2), view
    assert len(await results(http, batch)) == 2
    view = (await call(http, "GET", f"/v1/batches/{batch}"))[1]
    assert (view["state"], view["submitted"], view["answered"]) == ("complete", 2, 2)
    assert view["stages"][0]["finished"] == 2


async def test_a_trainer_reports_the_progress_of_an_open_batch_only(http: aiohttp.ClientSession) -> None:
    await declare(http, "told")
    batch = await open_batch(http, "told", size=1)
    path = f"/v1/batches/{batch}/progress"
    receipt = {"batch": batch, "generating": 1, "taken": True}
    assert await call(http, "POST", path, json={"generating": 1, "lengths": [10, 12.5]}) == (200, receipt)
    assert await call(http, "POST", path, json={"generating": 0}) == (200, {**receipt, "generating": 0})
    assert await call(http, "POST", path, json={"generating": 0}) == (
        200,
        {**receipt, "generating": 0, "taken": False},
    )
    status, problem = await call(http, "POST", path, json={"generating": -1})
    assert (status, "generating" in problem["detail"]) == (422, True)
    status, problem = await call(http, "POST", "/v1/batches/none/progress", json={"generating": 1})
    assert (status, problem["title"]) == (404, "Not found")
    ended = await open_batch(http, "told", size=1)
    await call(http, "DELETE", f"/v1/batches/{ended}")
    status, problem = await call(http, "POST", f"/v1/batches/{ended}/progress", json={"generating": 1})
    assert (status, "cancelled" in problem["detail"]) == (409, True)


async def test_a_batch_takes_as_many_requests_as_it_was_opened_for(http: aiohttp.ClientSession) -> None:
    await declare(http, "exact", batch_size=2)
    batch = await open_batch(http, "exact")
    receipt = await submit(http, batch, {"a": "print(1)", "b": "print(2)", "c": "print(3)"})
    assert (receipt["accepted"], len(receipt["rejected"])) == (2, 1)
    assert receipt["rejected"][0]["problem"]["status"] == 409
    assert {line["index"] for line in await results(http, batch)} == {0, 1}


async def test_a_repeat_gets_the_first_answer_and_another_body_is_a_conflict(http: aiohttp.ClientSession) -> None:
    body = {"kind": "code.run", "request_id": "once", "params": {"code": "import uuid; print(uuid.uuid4())"}}
    first = await call(http, "POST", f"/v1/actions?wait={WAIT_S}", json=body)
    again = await call(http, "POST", f"/v1/actions?wait={WAIT_S}", json=body)
    assert first == again
    assert first[0] == 200
    other = {**body, "params": {"code": "print(2)"}}
    status, problem = await call(http, "POST", "/v1/actions", json=other)
    assert status == 409
    assert "once" in problem["detail"]


async def test_opening_with_the_same_key_is_the_same_batch(http: aiohttp.ClientSession) -> None:
    await declare(http, "keyed")
    first = await open_batch(http, "keyed", key="step-1", size=3)
    assert await open_batch(http, "keyed", status=200, key="step-1", size=3) == first
    assert await open_batch(http, "keyed", key="step-2", size=3) != first
    status, problem = await call(http, "POST", "/v1/tasks/keyed/batches", json={"key": "step-1", "size": 5000})
    assert (status, problem["title"]) == (409, "Conflict")
    assert "step-1" in problem["detail"]
    assert first in problem["detail"]


LACKING = "no node of class '{}' offers noop with {} now; it waits for one until its budget ends"


@pytest.mark.parametrize(
    ("requirements", "pool", "units", "node_class"),
    [
        ({"units": {"gpus": 1}}, "gpus@default", "gpus=1", "default"),
        ({"node_class": "nobody"}, "slots@nobody", "slots=1", "nobody"),
        ({"units": {"cores": 999}}, "cores@default", "cores=999", "default"),
    ],
)
async def test_work_that_no_node_can_take_waits_with_a_reason(
    http: aiohttp.ClientSession, requirements: Json, pool: str, units: str, node_class: str
) -> None:
    body = {"kind": "noop", "budget_s": 60, **requirements}
    status, standing = await call(http, "POST", "/v1/actions", json=body)
    assert (status, standing["state"]) == (202, "queued")
    path = f"/v1/actions/{standing['id']}"
    async with asyncio.timeout(WAIT_S):
        while not (answer := (await call(http, "GET", f"{path}?wait=0.1"))[1]).get("reason"):
            pass
    assert (answer["state"], answer["reason"]) == ("queued", LACKING.format(node_class, units))
    assert await call(http, "GET", path) == (202, answer)
    assert await pool_of(http, pool) == {"waiting": 1, "stuck": 1}
    await call(http, "DELETE", path)
    status, answer = await call(http, "GET", f"{path}?wait={WAIT_S}")
    act = answer["act"]
    assert (status, answer["ended"], act["execution_s"]) == (200, "cancelled", 0)
    assert 0 < act["queue_s"] <= act["total_s"] == act["queue_s"] + act["execution_s"] + act["overhead_s"]

    async def is_empty() -> bool:
        return await pool_of(http, pool) in (None, {"waiting": 0, "stuck": 0})

    await soon(is_empty)


async def pool_of(http: aiohttp.ClientSession, name: str) -> dict[str, int] | None:
    pools = (await call(http, "GET", "/v1/pools"))[1]["pools"]
    found = [{field: pool[field] for field in ("waiting", "stuck")} for pool in pools if pool["name"] == name]
    return found[0] if found else None


async def test_a_batch_reports_its_stuck_requests(http: aiohttp.ClientSession) -> None:
    stage = {"name": "run", "kind": "noop", "units": {"gpus": 1}}
    await call(http, "PUT", "/v1/tasks/stuck", json={"stages": [stage]})
    batch = await open_batch(http, "stuck")
    await call(http, "POST", f"/v1/rewards/bulk?batch={batch}", data=b"{}\n{}\n{}")

    async def is_reported() -> bool:
        view = (await call(http, "GET", f"/v1/batches/{batch}"))[1]
        return bool((view["submitted"], view["answered"], view["stuck"]) == (3, 0, 3))

    await soon(is_reported)
    await call(http, "DELETE", f"/v1/batches/{batch}")
    assert [line["ended"] for line in await results(http, batch)] == ["cancelled"] * 3
    assert (await call(http, "GET", f"/v1/batches/{batch}"))[1]["stuck"] == 0


async def test_the_time_of_what_was_cut_adds_up(http: aiohttp.ClientSession) -> None:
    spinning = await start_spinning(http)
    await asyncio.sleep(0.5)
    await call(http, "DELETE", f"/v1/actions/{spinning}")
    act = (await call(http, "GET", f"/v1/actions/{spinning}?wait={WAIT_S}"))[1]["act"]
    assert act["execution_s"] > 0.4
    assert min(act.values()) >= 0
    assert act["total_s"] == act["queue_s"] + act["execution_s"] + act["overhead_s"]


async def test_a_task_whose_stage_lacks_the_core_it_needs_is_refused(http: aiohttp.ClientSession) -> None:
    stage = {"name": "run", "kind": "code.run", "units": {"cores": 0}}
    status, problem = await call(http, "PUT", "/v1/tasks/coreless", json={"stages": [stage]})
    assert (status, "needs a core" in problem["detail"]) == (422, True)


async def test_expired_work_is_not_started(http: aiohttp.ClientSession) -> None:
    spinning = await start_spinning(http)
    body = {"kind": "code.run", "params": {"code": "print(1)"}, "budget_s": 0.5}
    status, answer = await call(http, "POST", f"/v1/actions?wait={WAIT_S}", json=body)
    assert (status, answer["ended"], answer["mask"]) == (200, "expired", True)
    assert "waited" in answer["reason"]
    await call(http, "DELETE", f"/v1/actions/{spinning}")


async def test_a_program_at_its_limit_is_a_verdict_with_the_score_its_task_names(http: aiohttp.ClientSession) -> None:
    stage = {"name": "t", "kind": "code.asserts", "params": {"timeout_s": 1}, "timeout_s": 5}
    await call(http, "PUT", "/v1/tasks/limits", json={"stages": [stage], "timeout_score": -1.5})
    batch = await open_batch(http, "limits", size=1)
    params = {"code": SPIN, "tests": "assert True"}
    path = f"/v1/rewards?batch={batch}&wait={WAIT_S}"
    status, answer = await call(http, "POST", path, json={"params": params})
    assert (status, answer["ended"], answer["score"], answer.get("mask", False)) == (200, "timeout", -1.5, False)


async def test_a_language_no_node_has_is_refused_not_scored(http: aiohttp.ClientSession) -> None:
    body = {"kind": "code.run", "params": {"code": "x", "language": "cobol"}}
    status, answer = await call(http, "POST", f"/v1/actions?wait={WAIT_S}", json=body)
    assert (status, answer["ended"], answer.get("score")) == (200, "refused", None)
    assert "cobol" in answer["reason"]


async def test_results_are_read_on_from_a_cursor_without_miss_or_repeat(http: aiohttp.ClientSession) -> None:
    await declare(http, "long")
    batch = await open_batch(http, "long", size=20)
    await submit(http, batch, {str(n): "print(1)" for n in range(20)})
    whole = await results(http, batch)
    assert sorted(int(line["request_id"]) for line in whole) == list(range(20))
    for cut in (0, 7, 19):
        async with http.get(f"/v1/batches/{batch}/results?after={whole[cut]['cursor']}") as response:
            rest = [json.loads(line) async for line in response.content]
        assert rest == whole[cut + 1 :]


async def test_a_wrong_configuration_shows_on_the_batchs_page_within_20_answers(http: aiohttp.ClientSession) -> None:
    """An interpreter that no node has: every answer is masked, and the page has the share and the reason."""
    await declare(http, "misconfigured")
    batch = await open_batch(http, "misconfigured", size=40)
    lines = [
        json.dumps({"request_id": f"{n}", "params": {"code": "(display 1)", "language": "racket"}}) for n in range(20)
    ]
    await call(http, "POST", f"/v1/rewards/bulk?batch={batch}", data="\n".join(lines))
    async with asyncio.timeout(WAIT_S):
        while (view := (await call(http, "GET", f"/v1/batches/{batch}"))[1])["answered"] < 20:
            pass
    (failure,) = view["failures"]
    assert (view["masked"], view["masked_share"]) == (20, 1.0)
    assert (failure["ended"], failure["count"], failure["share"]) == ("refused", 20, 1.0)
    assert "racket" in failure["reason"]
    await submit(http, batch, {f"good-{n}": "print(1)" for n in range(20)})
    await results(http, batch)
    view = (await call(http, "GET", f"/v1/batches/{batch}"))[1]
    assert (view["masked_share"], view["failures"][0]["share"]) == (0.5, 0.5)
