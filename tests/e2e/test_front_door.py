"""What callers of the front door meet: order, cancelling, sealing, repeats, bounds. One real mesh with one core."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from tests.e2e.replicas import Mesh, one_core_mesh
from tests.shared.bus.soon import soon

Json = dict[str, Any]

WAIT_S = 60
SPIN = "while True: pass"
BUSY = "import time\nuntil = time.process_time() + {s}\nwhile time.process_time() < until: pass"


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with one_core_mesh() as running:
        yield running


@pytest.fixture
async def http(mesh: Mesh) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(mesh.proxies[0].url, timeout=aiohttp.ClientTimeout(total=120)) as session:
        yield session


async def call(http: aiohttp.ClientSession, method: str, path: str, **request: Any) -> tuple[int, Any]:
    async with http.request(method, path, **request) as response:
        text = await response.text()
        return response.status, json.loads(text) if text else None


async def declare(http: aiohttp.ClientSession, task: str, *, timeout_s: float = 30.0, **fields: Any) -> None:
    stage = {"name": "run", "kind": "code.run", "timeout_s": timeout_s}
    status, view = await call(http, "PUT", f"/v1/tasks/{task}", json={"stages": [stage], **fields})
    assert status == 200, view


async def open_batch(http: aiohttp.ClientSession, task: str, *, status: int = 201, **opening: Any) -> str:
    got, view = await call(http, "POST", f"/v1/tasks/{task}/batches", json=opening)
    assert got == status, view
    return str(view["id"])


async def submit(http: aiohttp.ClientSession, batch: str, codes: dict[str, str]) -> Json:
    lines = [json.dumps({"request_id": name, "params": {"code": code}}) for name, code in codes.items()]
    status, receipt = await call(http, "POST", f"/v1/rewards/bulk?batch={batch}", data="\n".join(lines))
    assert status == 200, receipt
    return dict(receipt)


async def results(http: aiohttp.ClientSession, batch: str) -> list[Json]:
    async with http.get(f"/v1/batches/{batch}/results?follow=true") as response:
        assert response.status == 200
        return [json.loads(line) async for line in response.content]


async def start_spinning(http: aiohttp.ClientSession) -> str:
    """An action that holds the only core until somebody ends it."""
    body = {"kind": "code.run", "params": {"code": SPIN, "run_timeout_s": 100}, "timeout_s": 120}
    status, standing = await call(http, "POST", "/v1/actions", json=body)
    assert status == 202, standing
    async with asyncio.timeout(WAIT_S):
        while (await call(http, "GET", f"/v1/actions/{standing['id']}?wait=0.05"))[1]["state"] != "granted":
            pass
    return str(standing["id"])


async def test_the_batch_that_is_due_first_is_served_first_whenever_it_came(http: aiohttp.ClientSession) -> None:
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
    ("asked", "pool", "units", "node_class"),
    [
        ({"units": {"gpus": 1}}, "gpus@default", "gpus=1", "default"),
        ({"node_class": "nobody"}, "slots@nobody", "slots=1", "nobody"),
        ({"units": {"cores": 999}}, "cores@default", "cores=999", "default"),
    ],
)
async def test_work_that_no_node_could_take_waits_and_says_why(
    http: aiohttp.ClientSession, asked: Json, pool: str, units: str, node_class: str
) -> None:
    body = {"kind": "noop", "budget_s": 60, **asked}
    status, standing = await call(http, "POST", "/v1/actions", json=body)
    assert (status, standing["state"]) == (202, "queued")
    path = f"/v1/actions/{standing['id']}"
    async with asyncio.timeout(WAIT_S):
        while not (told := (await call(http, "GET", f"{path}?wait=0.1"))[1]).get("reason"):
            pass
    assert (told["state"], told["reason"]) == ("queued", LACKING.format(node_class, units))
    assert await call(http, "GET", path) == (202, told)
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


async def test_a_batch_says_how_much_of_it_is_stuck(http: aiohttp.ClientSession) -> None:
    stage = {"name": "run", "kind": "noop", "units": {"gpus": 1}}
    await call(http, "PUT", "/v1/tasks/stuck", json={"stages": [stage]})
    batch = await open_batch(http, "stuck")
    await call(http, "POST", f"/v1/rewards/bulk?batch={batch}", data=b"{}\n{}\n{}")

    async def is_told() -> bool:
        view = (await call(http, "GET", f"/v1/batches/{batch}"))[1]
        return bool((view["submitted"], view["answered"], view["stuck"]) == (3, 0, 3))

    await soon(is_told)
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


async def test_what_nobody_needs_any_more_is_not_started(http: aiohttp.ClientSession) -> None:
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


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/v1/actions", b"{", 422, "JSON"),
        ("POST", "/v1/actions", b'{"kind": "nope"}', 422, "there are"),
        ("POST", "/v1/actions", b'{"kind": "noop", "parms": {}}', 422, "parms"),
        ("POST", "/v1/actions", b'{"kind": "code.run", "params": {"code": "", "lang": 1}}', 422, "lang"),
        ("POST", "/v1/actions?wait=soon", b'{"kind": "noop"}', 422, "wait"),
        ("POST", "/v1/rewards", b"{}", 422, "batch"),
        ("POST", "/v1/rewards?batch=b0", b"{}", 404, "never opened"),
        ("POST", "/v1/rewards/bulk", b"\n\n", 422, "empty"),
        ("GET", "/v1/actions/0123456789abcdef", None, 404, "never accepted"),
        ("GET", "/v1/batches/b0", None, 404, "never opened"),
        ("GET", "/v1/batches/b0/results", None, 404, "never opened"),
        ("GET", "/v1/tasks/nothing", None, 404, "PUT /v1/tasks/nothing"),
        ("PATCH", "/v1/actions", b"", 405, "POST"),
        ("POST", "/v1/actions", io.BytesIO(b"x" * (9 << 20)), 413, "larger"),
        ("PUT", "/v1/tasks/t", io.BytesIO(b" " * (9 << 20)), 413, "larger"),
    ],
)
async def test_a_bad_request_is_told_what_to_do(
    http: aiohttp.ClientSession, method: str, path: str, body: bytes | io.BytesIO | None, status: int, says: str
) -> None:
    async with http.request(method, path, data=body) as response:
        assert response.status == status
        assert response.content_type == "application/problem+json"
        assert says in (await response.json(content_type=None))["detail"]


async def test_bad_lines_are_named_and_good_ones_taken(http: aiohttp.ClientSession) -> None:
    await declare(http, "mixed")
    batch = await open_batch(http, "mixed", size=1)
    lines = b'{"params": {"code": 1}}\nnot json\n\n{"request_id": "good", "params": {"code": "print(1)"}}'
    status, receipt = await call(http, "POST", f"/v1/rewards/bulk?batch={batch}", data=lines)
    assert (status, receipt["accepted"]) == (200, 1)
    assert [rejection["line"] for rejection in receipt["rejected"]] == [1, 2]
    assert len(await results(http, batch)) == 1


async def test_lines_for_a_batch_that_is_not_there_are_one_problem(http: aiohttp.ClientSession) -> None:
    line = b'{"params": {"code": "print(1)"}}'
    status, problem = await call(http, "POST", "/v1/rewards/bulk?batch=b0", data=b"\n".join([line] * 3))
    assert (status, problem["kind"], problem["name"]) == (404, "batch", "b0")
    status, receipt = await call(http, "POST", "/v1/rewards/bulk?batch=b0", data=line + b"\n{")
    assert (status, [one["problem"]["status"] for one in receipt["rejected"]]) == (200, [404, 422])


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


DEEP = b"[" * 100_000 + b"]" * 100_000
BAD = {
    "no text": (b'{"kind":"noop","params":{"echo":"\xe9"}}', "not UTF-8"),
    "no JSON": (b'{"kind":', "not JSON"),
    "too deep": (b'{"kind":"noop","params":{"echo":' + DEEP + b"}}", "inside each other"),
    "deep": (b'{"kind":"python.function","params":{"module":"","solution_str":"","extra_info":{"a":' + b"[" * 90
             + b"]" * 90 + b"}}}", "more than 64"),
    "half a letter": (b'{"kind":"noop","params":{"echo":"\\ud800"}}', "half of a surrogate"),
    "no name": (b'{"kind":"noop","units":{"":1}}', "units"),
    "no name either": (b'{"kind":"noop","node_class":"default\\n"}', "node_class"),
    "too many": (json.dumps({"kind": "code.run", "params": {"code": "", "fetch_files": ["a"] * 2000}}).encode(),
                 "length <= 1024"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
async def test_bytes_that_mean_nothing_are_the_callers_error_and_say_why(
    http: aiohttp.ClientSession, what: str
) -> None:
    body, why = BAD[what]
    status, problem = await call(http, "POST", "/v1/actions", data=body)
    assert (status, problem["type"].rpartition("/")[2]) == (422, "bad-request")
    assert why in problem["detail"]


async def test_a_bad_line_in_bulk_is_named_and_the_others_are_accepted(http: aiohttp.ClientSession) -> None:
    await declare(http, "lines")
    batch = await open_batch(http, "lines", size=4)
    good = b'{"params":{"code":"pass"}}'
    lines = [
        b"\xef\xbb\xbf" + good,
        b'{"params":{"code":"\xff"}}',
        good,
        b'{"params":{"code":' + DEEP + b"}}",
        b'{"params":',
        good,
        good,
    ]
    status, receipt = await call(http, "POST", f"/v1/rewards/bulk?batch={batch}", data=b"\n".join(lines))
    assert (status, receipt["accepted"]) == (200, 4)
    assert [(each["line"], each["problem"]["status"]) for each in receipt["rejected"]] == [(2, 422), (4, 422), (5, 422)]
    assert len(await results(http, batch)) == 4


async def test_what_callers_get_wrong_is_told_in_words_they_can_use(http: aiohttp.ClientSession) -> None:
    status, problem = await call(http, "PUT", "/v1/tasks/untyped", data=b'{"stages":[]}')
    assert status == 422
    assert "content-type: application/json" in problem["detail"]
    status, problem = await call(http, "GET", "/v1/nothing")
    assert status == 404
    assert "/openapi.json" in problem["detail"]
    for method, path in (("PATCH", "/v1/actions"), ("PATCH", "/v1/tasks")):
        status, problem = await call(http, method, path)
        assert (status, problem["type"].rpartition("/")[2]) == (405, "http-405")
        assert problem["detail"].startswith("use ")
    status, problem = await call(http, "POST", "/v1/actions?wiat=5", json={"kind": "noop"})
    assert status == 422
    assert "'wiat'" in problem["detail"]


async def test_a_file_name_that_no_kernel_takes_is_our_refusal_and_no_verdict(http: aiohttp.ClientSession) -> None:
    body = {"code": "pass", "language": "python", "files": {"n" * 5000: ""}}
    status, answer = await call(http, "POST", "/run_code", json=body)
    assert (status, answer["status"]) == (200, "SandboxError")
    assert "relative path" in answer["message"]


async def test_work_without_units_harms_nobody(http: aiohttp.ClientSession) -> None:
    for _ in range(3):  # so that it is known to be short
        assert (await call(http, "POST", "/v1/actions?wait=10", json={"kind": "noop", "units": {}}))[0] == 200
    bodies = [{"kind": "noop", "units": units} for units in ({}, {"slots": 0}) for _ in range(10)]
    answers = await asyncio.gather(*(call(http, "POST", "/v1/actions?wait=20", json=body) for body in bodies))
    assert {(status, answer["ended"]) for status, answer in answers} == {(200, "ok")}
