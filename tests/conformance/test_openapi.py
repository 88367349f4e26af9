"""The OpenAPI document is the contract: schemathesis holds a running proxy to every line of it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema_rs
import pytest
import redis

from tests.e2e.processes import Service, running_service
from tests.e2e.replicas import is_ready, until
from treadle.testing.servers import running_valkey, temporary_home

SECONDS = 45
EXAMPLES = 25
SEED = 20_260_1
ENOUGH = "enough"
"""The quota of openapi_hooks.py."""
TASK = {"stages": [{"name": "match", "kind": "answer.match", "units": {"slots": 1}}], "batch_size": 2}


@pytest.fixture(scope="module")
def proxy() -> Iterator[Service]:
    """A stack with a node of each kind, so that accepted requests are also executed. Long polls are short here."""
    with (
        temporary_home() as root,
        running_valkey(root) as url,
        running_service("proxy", url, PROXY_MAX_WAIT_S="1", PROXY_RUN_CODE_MARGIN_S="1") as proxy,
        running_service("cpu_manager", url),
        running_service("quota_manager", url),
    ):
        yield proxy


@pytest.fixture
async def http(proxy: Service) -> AsyncIterator[aiohttp.ClientSession]:
    await until(lambda: is_ready(proxy))
    async with aiohttp.ClientSession(proxy.url) as session:
        yield session


async def post(http: aiohttp.ClientSession, path: str, body: Any) -> dict[str, Any]:
    async with http.post(path, json=body) as response:
        assert response.status in (200, 201), await response.text()
        return dict(await response.json())


async def complete_batch(http: aiohttp.ClientSession) -> str:
    """A batch of two with both answers, so that following its results ends."""
    async with http.put("/v1/tasks/known", json=TASK) as response:
        assert response.status == 200, await response.text()
    batch = str((await post(http, "/v1/tasks/known/batches", {"key": "complete"}))["id"])
    for name in ("a", "b"):
        params = {"response": name, "gold": "a"}
        body = {"batch": batch, "request_id": name, "params": params}
        assert (await post(http, "/v1/rewards?wait=1", body))["state"] == "finished"
    return batch


@pytest.mark.slow
async def test_the_proxy_keeps_to_its_document(proxy: Service, http: aiohttp.ClientSession, tmp_path: Path) -> None:
    batch = await complete_batch(http)
    action = await post(http, "/v1/actions?wait=1", {"kind": "noop", "request_id": "known"})
    trajectory = (await post(http, "/v1/trajectories", {"environment": {"memory_mb": 64}}))["id"]
    known = {"task": "known", "batch": batch, "id": action["id"], "tenant": "default", "trajectory": trajectory}
    known["quota"] = "search"
    async with http.put(f"/v1/quotas/{ENOUGH}", json={"concurrency": 1e12}) as response:
        assert response.status == 200, await response.text()
    command = [
        str(Path(sys.executable).parent / "schemathesis"),
        *("run", f"{proxy.url}/openapi.json", "--no-color", "--warnings", "off"),
        *("--seed", str(SEED), "--max-examples", str(EXAMPLES), "--max-time", str(SECONDS)),
        *("--request-timeout", "30", "--continue-on-failure", "--output-truncate", "false"),
        # A schema cannot express every rule: names of stages differ, an assert needs its tests.
        *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
    ]
    status, report = await asyncio.to_thread(schemathesis, command, known, tmp_path)
    assert status == 0, report


def schemathesis(command: list[str], known: dict[str, str], folder: Path) -> tuple[int, str]:
    """(exit status, output)."""
    environment = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "tests.conformance.openapi_hooks",
        "TREADLE_KNOWN": json.dumps(known),
        "PYTHONPATH": str(Path.cwd()),
    }
    run = subprocess.run(command, env=environment, cwd=folder, text=True, capture_output=True, timeout=240, check=False)
    return run.returncode, run.stdout + run.stderr


ROUTES = [
    ("GET", "/v1/tasks", None),
    ("PUT", "/v1/tasks/{task}", TASK),
    ("GET", "/v1/tasks/{task}", None),
    ("DELETE", "/v1/tasks/{task}", None),
    ("POST", "/v1/tasks/{task}/batches", {}),
    ("GET", "/v1/batches", None),
    ("GET", "/v1/batches/{batch}", None),
    ("GET", "/v1/batches/{batch}/results", None),
    ("POST", "/v1/batches/{batch}/progress", {"generating": 3}),
    ("POST", "/v1/batches/{batch}/seal", None),
    ("DELETE", "/v1/batches/{batch}", None),
    ("POST", "/v1/rewards", {"task": "known", "params": {"response": "a", "gold": "a"}}),
    ("POST", "/v1/actions", {"kind": "noop"}),
    ("GET", "/v1/actions/{id}", None),
    ("DELETE", "/v1/actions/{id}", None),
    ("POST", "/v1/actions/{id}/park", {}),
    ("GET", "/v1/tenants", None),
    ("GET", "/v1/tenants/{tenant}", None),
    ("PUT", "/v1/tenants/{tenant}", {"weight": 2.0}),
    ("DELETE", "/v1/tenants/{tenant}", None),
    ("GET", "/v1/quotas", None),
    ("GET", "/v1/quotas/{quota}", None),
    ("PUT", "/v1/quotas/{quota}", {"concurrency": 2}),
    ("DELETE", "/v1/quotas/{quota}", None),
    ("GET", "/v1/services", None),
    ("GET", "/v1/services/{service}", None),
    ("PUT", "/v1/services/{service}", {"entry": "judge"}),
    ("DELETE", "/v1/services/{service}", None),
    ("POST", "/v1/actions/{id}/resume", None),
    ("POST", "/retrieve", {"query": "x"}),
    ("POST", "/t/{tenant}/{task}/retrieve", {"query": "x"}),
    ("POST", "/v1/acquire", {"quotas": {"search": 1}}),
    ("GET", "/v1/leases/{id}", None),
    ("POST", "/v1/leases/{id}/renew", {"fence": 1}),
    ("POST", "/v1/leases/{id}/release", {"fence": 1}),
    ("POST", "/v1/leases/{id}/settle", {"fence": 1, "used": {"search": 1}}),
    ("POST", "/v1/trajectories", {}),
    ("GET", "/v1/trajectories", None),
    ("GET", "/v1/trajectories/{trajectory}", None),
    ("PATCH", "/v1/trajectories/{trajectory}", {"priority": -1.0}),
    ("DELETE", "/v1/trajectories/{trajectory}", None),
    ("GET", "/v1/trajectories/{trajectory}/tokens", None),
    ("GET", "/v1/trajectories/{trajectory}/tokens/calls", None),
    ("DELETE", "/v1/trajectories/{trajectory}/tokens", None),
    ("GET", "/v1/trajectories/{trajectory}/trace", None),
    ("POST", "/v1/trajectories/{trajectory}/actions", {"kind": "env.list"}),
    ("GET", "/v1/trajectories/{trajectory}/swerex/is_alive", None),
    ("POST", "/v1/trajectories/{trajectory}/swerex/create_session", {}),
    ("POST", "/v1/trajectories/{trajectory}/swerex/run_in_session", {"action_type": "bash", "command": "true"}),
    ("POST", "/v1/trajectories/{trajectory}/swerex/close_session", {}),
    ("POST", "/v1/trajectories/{trajectory}/swerex/execute", {"command": "true"}),
    ("POST", "/v1/trajectories/{trajectory}/swerex/read_file", {"path": "x"}),
    ("POST", "/v1/trajectories/{trajectory}/swerex/write_file", {"path": "x", "content": ""}),
    ("POST", "/v1/trajectories/{trajectory}/swerex/close", None),
    ("GET", "/v1/nodes", None),
    ("GET", "/v1/pools", None),
    ("GET", "/v1/plans", None),
]


async def test_while_valkey_is_away_every_route_answers_retry_after(stack_home: Path) -> None:
    names = {"task": "known", "batch": "b0", "id": "a" * 12, "trajectory": "t" + "0" * 16, "tenant": "ada"}
    names |= {"quota": "search", "service": "judge"}
    with running_valkey(stack_home) as url, running_service("proxy", url, PROXY_SUBMIT_RETRY_S="0.2") as proxy:
        await until(lambda: is_ready(proxy))
        with redis.Redis.from_url(url) as client:
            client.shutdown(nosave=True)
        async with aiohttp.ClientSession(proxy.url) as session:
            asked = [answer_of(session, method, path.format(**names), body) for method, path, body in ROUTES]
            answers = await asyncio.gather(*asked)
    for route, (status, headers, text) in zip(ROUTES, answers, strict=True):
        assert (status, headers["content-type"]) == (503, "application/problem+json"), (route, text)
        assert int(headers["retry-after"]) >= 1


async def answer_of(session: aiohttp.ClientSession, method: str, path: str, body: Any) -> tuple[int, Any, str]:
    async with session.request(method, path, json=body) as response:
        return response.status, response.headers, await response.text()


async def test_no_route_is_left_out_above(http: aiohttp.ClientSession) -> None:
    async with http.get("/openapi.json") as response:
        paths = (await response.json())["paths"]
    ours = {path: methods for path, methods in paths.items() if path.startswith("/v1") or path.endswith("/retrieve")}
    report = {(method.upper(), path) for path, methods in ours.items() for method in methods}
    aside = {("GET", "/v1/ping"), ("GET", "/v1/health"), ("POST", "/v1/rewards/bulk")}  # need none; line by line
    aside.add(("POST", "/v1/trajectories/{trajectory}/swerex/upload"))  # is a form
    assert report - aside == {(method, path) for method, path, _ in ROUTES}


async def test_every_line_of_the_results_is_as_documented(http: aiohttp.ClientSession) -> None:
    async with http.get("/openapi.json") as response:
        document = await response.json()
    batch = await complete_batch(http)
    async with http.get(f"/v1/batches/{batch}/results?follow=true") as response:
        assert response.content_type == "application/x-ndjson"
        lines = [json.loads(line) async for line in response.content]
    line = {**document, "$ref": "#/components/schemas/ResultLine"}
    assert len(lines) == 2
    for each in lines:
        jsonschema_rs.validate(line, each)
