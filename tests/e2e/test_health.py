"""Reports of a stack on its parts: readiness, health, metrics, and reads while a store is silent."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.runtime.stack_state import State
from tests.architecture.test_metric_names import METRICS
from treadle.testing.servers import clean_environment, temporary_home
from treadle.testing.stack import RunningStack, running_stack

WITHIN_S = 90.0
NO_WORKER = "no worker node is ready: only external calls are executed, other work waits"
TREADLE = Path(sys.executable).with_name("treadle")

TASK = {"stages": [{"name": "tests", "kind": "noop", "units": {"cores": 1}}], "batch_size": 1}

RECORDED = {"environment": {"image": "local"}, "record": "tokens"}

READS = [
    "/v1/tasks",
    "/v1/tasks/known",
    "/v1/tenants",
    "/v1/tenants/known",
    "/v1/quotas",
    "/v1/quotas/known",
    "/v1/services",
    "/v1/services/known",
    "/v1/batches",
    "/v1/batches/{batch}",
    "/v1/batches/{batch}/results",
    "/v1/batches/{batch}/results?follow=true",
    "/v1/actions/{action}",
    "/v1/leases/{action}",
    "/v1/trajectories",
    "/v1/trajectories/{trajectory}",
    "/v1/trajectories/{trajectory}/tokens",
    "/v1/trajectories/{trajectory}/tokens/calls",
    "/v1/trajectories/{trajectory}/trace",
    "/v1/trajectories/{trajectory}/swerex/is_alive",
    "/v1/nodes",
    "/v1/pools",
    "/v1/plans",
]


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with temporary_home() as root, running_stack(root) as running:
        yield running


def fetch(url: str, method: str = "GET", body: Any = None) -> tuple[int, str, bytes]:
    """(status, content type, body)."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers["content-type"], answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["content-type"], error.read()


def view(stack: RunningStack, path: str, method: str = "GET", body: Any = None) -> dict[str, Any]:
    status, _, text = fetch(stack.urls["proxy"] + path, method, body)
    assert status < 300, text
    return dict(json.loads(text))


def samples(stack: RunningStack, service: str = "proxy") -> dict[str, float]:
    """Each line of `/metrics`: name and labels -> value."""
    _, _, text = fetch(stack.urls[service] + "/metrics")
    lines = [line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def status_text(stack: RunningStack) -> str:
    """Output of `treadle status`."""
    environ = {**clean_environment(), "TREADLE_HOME": str(stack.home.root)}
    done = subprocess.run([TREADLE, "status"], env=environ, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@contextmanager
def frozen(stack: RunningStack, *names: str) -> Iterator[None]:
    """These parts, with all their children, answer nothing and hold their connections."""
    tree = [one for name in names for one in _with_children(stack.pids[name])]
    for one in tree:
        os.kill(one, signal.SIGSTOP)
    try:
        yield
    finally:
        for one in tree:
            os.kill(one, signal.SIGCONT)


def _with_children(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def is_well(stack: RunningStack) -> bool:
    health = view(stack, "/v1/health")
    return not health["problems"] and health["planner"] is health["leader"] is health["postgres"]["answers"] is True


def test_a_healthy_stack_has_no_problems_and_reports_memory_and_disk(stack: RunningStack) -> None:
    until(lambda: is_well(stack), "every part is well")
    health = view(stack, "/v1/pools")["health"]
    assert health["problems"] == []
    assert health["valkey"]["bound_bytes"] == 1 << 30
    assert 0 < health["valkey"]["used_bytes"] < 1 << 30
    assert 0 < health["disk"]["free_bytes"] < health["disk"]["total_bytes"]
    assert re.search(r"^valkey \d+ MiB of 1024 MiB; disk [\d.]+ of [\d.]+ GiB free$", status_text(stack), re.MULTILINE)


@pytest.mark.parametrize("service", sorted(METRICS.keys() - {"gpu_manager"}))  # that one: test_model_services.py
def test_metrics_are_those_of_the_list(stack: RunningStack, service: str) -> None:
    _, _, text = fetch(stack.urls[service] + "/metrics")
    served = set(re.findall(r"^# TYPE (treadle_\w+) \w+$", text.decode(), re.MULTILINE))
    assert {name for name in served if not name.endswith("_created")} == METRICS[service]


def test_queueing_nodes_callers_and_restarts_are_metrics(stack: RunningStack) -> None:
    view(stack, "/v1/tasks/known", "PUT", TASK)
    assert view(stack, "/v1/rewards?wait=60", "POST", {"task": "known", "params": {}})["ended"] == "ok"
    absent = {"kind": "sleep", "params": {"seconds": 0}, "units": {"cores": 1}, "node_class": "absent"}
    stuck_id = view(stack, "/v1/actions", "POST", absent)["id"]
    pid = stack.kill("cpu_manager")
    stack.await_healthy("cpu_manager", other_than=pid)
    restarts = 'treadle_proxy_service_restarts{service="cpu_manager"}'
    until(lambda: samples(stack).get(restarts) == 1.0, "the restart is counted")
    queued = 'treadle_proxy_queued_actions{pool="cores@absent"}'
    stuck = 'treadle_proxy_stuck_actions{pool="cores@absent"}'
    until(lambda: samples(stack).get(queued) == samples(stack).get(stuck) == 1.0, "what waits is counted")
    until(lambda: samples(stack).get('treadle_proxy_nodes{state="ready"}') == 2.0, "both nodes are counted")
    now = samples(stack)
    assert now['treadle_proxy_queue_seconds_count{pool="cores@default",stage="tests"}'] >= 1.0
    assert now['treadle_proxy_service_restarts{service="valkey"}'] == 0.0
    with ThreadPoolExecutor(1) as caller:
        waiting = caller.submit(fetch, f"{stack.urls['proxy']}/v1/actions/{stuck_id}?wait=30")
        until(lambda: samples(stack)["treadle_proxy_waiting_callers"] == 1.0, "the caller is counted")
        view(stack, f"/v1/actions/{stuck_id}", "DELETE")
        assert json.loads(waiting.result(60)[2])["ended"] == "cancelled"
    until(lambda: samples(stack)["treadle_proxy_waiting_callers"] == 0.0, "the caller has gone")


def test_a_mesh_without_a_node_and_stuck_actions_are_shown(stack: RunningStack) -> None:
    until(lambda: is_well(stack), "every part is well")
    with frozen(stack, "cpu_manager"):

        def problems() -> list[str]:
            return list(view(stack, "/v1/health")["problems"])

        until(lambda: problems() == [NO_WORKER], "the absence is shown")
        one = {"kind": "noop", "units": {"cores": 1}}
        waiting = [view(stack, "/v1/actions", "POST", one)["id"] for _ in range(3)]
        stuck = "actions in cores@default are stuck (3): no node of class 'default' offers noop with cores=1"
        until(lambda: stuck in problems(), f"{stuck} is shown")
        text = status_text(stack)
        assert f"problem: {NO_WORKER}" in text
        assert f"problem: {stuck}" in text
    until(lambda: is_well(stack), "every part is well again")
    for action in waiting:
        assert view(stack, f"/v1/actions/{action}?wait=60")["ended"] == "ok"


def test_an_absent_planner_and_a_silent_postgres_are_shown(stack: RunningStack) -> None:
    until(lambda: is_well(stack), "every part is well")
    with frozen(stack, "scaling_planner", "postgres"):

        def both() -> bool:
            found = view(stack, "/v1/pools")["health"]
            return found["planner"] is False and found["postgres"]["answers"] is False

        until(both, "both are shown")
        now = samples(stack)
        assert now["treadle_proxy_planner_up"] == now['treadle_proxy_store_up{store="postgres"}'] == 0.0
        assert now["treadle_proxy_leader_up"] == now['treadle_proxy_store_up{store="valkey"}'] == 1.0
        text = status_text(stack)
        assert "problem: no planner holds its lease: pools follow what waits (zero-queue rule)" in text
        assert "problem: Postgres does not answer" in text
        until(lambda: stack.service("postgres").state is State.UNREADY, "the supervisor has noticed")
        assert stack.service("postgres").restarts == 0
        assert fetch(stack.urls["proxy"] + "/readyz")[0] == 200
    until(lambda: is_well(stack), "every part is well again")
    stack.await_healthy("postgres")
    began, *_, after = re.findall(r"postgres is healthy after ([\d.]+) s", stack.log("treadle"))
    up_s = time.time() - psutil.Process(stack.pids["postgres"]).create_time()
    assert float(after) < up_s - float(began), "it counts from the last unready moment"


def test_while_valkey_does_not_answer_reads_get_503_and_the_proxy_is_unready(stack: RunningStack) -> None:
    until(lambda: is_well(stack), "every part is well")
    view(stack, "/v1/tasks/known", "PUT", TASK)
    view(stack, "/v1/quotas/known", "PUT", {"concurrency": 1})
    names = {
        "batch": view(stack, "/v1/tasks/known/batches", "POST", {})["id"],
        "action": view(stack, "/v1/actions", "POST", {"kind": "noop"})["id"],
        "trajectory": view(stack, "/v1/trajectories", "POST", RECORDED)["id"],
    }
    base, pid = stack.urls["proxy"], stack.pids["proxy"]
    assert fetch(base + "/readyz")[0] == 200
    with frozen(stack, "valkey"):
        paths = [path.format(**names) for path in (*READS, "/v1/actions/{action}?wait=1")]
        with ThreadPoolExecutor(len(paths)) as callers:
            answers = list(callers.map(fetch, [base + path for path in paths]))
        for path, (status, kind, text) in zip(paths, answers, strict=True):
            assert (status, kind) == (503, "application/problem+json"), (path, text)
            assert "Valkey" in json.loads(text)["detail"], path
        status, kind, text = fetch(base + "/readyz")
        assert (status, kind) == (503, "application/problem+json")
        assert json.loads(text)["detail"] == "Valkey does not answer"
        until(lambda: view(stack, "/v1/health")["valkey"]["answers"] is False, "health shows it")
        assert samples(stack)['treadle_proxy_store_up{store="valkey"}'] == 0.0
        assert "problem: Valkey does not answer" in status_text(stack)
        assert stack.pids["proxy"] == pid
    until(lambda: fetch(base + "/readyz")[0] == 200, "it is ready again")
    until(lambda: is_well(stack), "every part is well again")
    assert (stack.pids["proxy"], stack.service("proxy").restarts) == (pid, 0)
    for path in READS:
        if "follow" not in path and path != "/v1/services/known":  # this stack has no model service
            expected = 404 if "leases" in path else 200  # the action is no lease
            assert fetch(base + path.format(**names))[0] == expected, path


def test_a_parameter_that_a_read_does_not_have_is_refused(stack: RunningStack) -> None:
    view(stack, "/v1/tasks/known", "PUT", TASK)
    names = {
        "batch": view(stack, "/v1/tasks/known/batches", "POST", {})["id"],
        "action": view(stack, "/v1/actions", "POST", {"kind": "noop"})["id"],
        "trajectory": view(stack, "/v1/trajectories", "POST", RECORDED)["id"],
    }
    for path in (*READS, "/v1/health"):
        url = stack.urls["proxy"] + path.format(**names)
        status, kind, text = fetch(url + ("&" if "?" in url else "?") + "folow=true")
        assert (status, kind) == (422, "application/problem+json"), path
        assert "unknown query parameter 'folow'" in json.loads(text)["detail"], path
    status, _, text = fetch(f"{stack.urls['proxy']}/v1/batches/{names['batch']}/results?folow=true")
    assert "there is follow, after" in json.loads(text)["detail"]


def test_every_read_of_the_api_is_in_the_list_above(stack: RunningStack) -> None:
    paths = view(stack, "/openapi.json")["paths"]
    aside = {"/v1/ping", "/v1/health"}  # need no Valkey
    reads = {re.sub(r"\{(\w+)\}", "{}", path) for path, methods in paths.items() if "get" in methods}
    known = {re.sub(r"\{(\w+)\}|known", "{}", path.partition("?")[0]) for path in READS}
    assert {path for path in reads if path.startswith("/v1/")} - aside == known
