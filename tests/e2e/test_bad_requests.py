"""Invalid requests: each answer is a problem with the correction, and no other work is lost."""

from __future__ import annotations

import asyncio
import io
import json

import aiohttp
import pytest

from tests.e2e.proxy_calls import call, declare, http, mesh, open_batch, results

__all__ = ["http", "mesh"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "detail"),
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
async def test_an_error_names_what_to_send_instead(
    http: aiohttp.ClientSession, method: str, path: str, body: bytes | io.BytesIO | None, status: int, detail: str
) -> None:
    async with http.request(method, path, data=body) as response:
        assert response.status == status
        assert response.content_type == "application/problem+json"
        assert detail in (await response.json(content_type=None))["detail"]


async def test_a_file_that_is_not_base64_is_refused(http: aiohttp.ClientSession) -> None:
    action = {"kind": "code.run", "params": {"code": "print(1)", "files": {"a": "%%%"}}}
    _, answer = await call(http, "POST", "/v1/actions?wait=60", json=action)
    assert answer["ended"] == "refused", answer
    assert "'a': the content is not base64" in answer["reason"]


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
                 "at most 1024 items"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
async def test_undecodable_bytes_are_the_callers_error_with_a_reason(http: aiohttp.ClientSession, what: str) -> None:
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


async def test_errors_of_callers_have_useful_messages(http: aiohttp.ClientSession) -> None:
    status, problem = await call(http, "PUT", "/v1/tasks/untyped", data=b'{"stages":[]}')
    assert (status, problem["detail"]) == (422, "stages: must have at least 1 item")
    for form in ("application/x-www-form-urlencoded", "text/plain"):
        task = b'{"stages":[{"name":"run","kind":"noop"}]}'
        status, problem = await call(http, "PUT", "/v1/tasks/untyped", data=task, headers={"content-type": form})
        assert status in {200, 201}, problem
        status, problem = await call(http, "PUT", "/v1/tasks/untyped", data=b"stages=1", headers={"content-type": form})
        assert (status, "not JSON" in problem["detail"]) == (422, True), problem
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


async def test_work_without_units_does_not_delay_others(http: aiohttp.ClientSession) -> None:
    for _ in range(3):  # so that it is known to be short
        assert (await call(http, "POST", "/v1/actions?wait=10", json={"kind": "noop", "units": {}}))[0] == 200
    bodies = [{"kind": "noop", "units": units} for units in ({}, {"slots": 0}) for _ in range(10)]
    answers = await asyncio.gather(*(call(http, "POST", "/v1/actions?wait=20", json=body) for body in bodies))
    assert {(status, answer["ended"]) for status, answer in answers} == {(200, "ok")}
