"""vLLM's sleep contract (facts A2) as HTTP, of both servers that speak it here: the conformance server, which has no
model, and the front of a real model. What holds for one holds for the other.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.services.gpu_manager.backends.engines import CANARY
from tests.services.trajectory_router.engine import free_port
from treadle.mesh import mesh_command
from treadle.testing.llamacpp import gemma_weights

CONFORMANCE, REAL = "conformance server", "real model"
START_S, CALL_S = 60, 60
EXPECTED = "4"
PROMPT = {"model": "tiny", "prompt": CANARY.prompt, "max_tokens": 8, "temperature": 0}
LONG = {"model": "tiny", "prompt": "1 2 3 4", "max_tokens": 100, "temperature": 0, "ignore_eos": True}


@contextmanager
def running(kind: str, *, controls: bool = True) -> Iterator[httpx.Client]:
    """Run a server as a process. `controls`: with its sleep mode."""
    port = free_port()
    argv: tuple[str, ...]
    if kind == CONFORMANCE:
        server = Path(__file__).with_name("vllm_server.py")
        switches = json.dumps({"dev_mode": controls})
        argv = (sys.executable, str(server), "--port", str(port), "--switches", switches)
    else:
        flag = ("--enable-sleep-mode",) if controls else ()
        argv = mesh_command("treadle.testing.sleeping_vllm", str(gemma_weights()), "--port", str(port), *flag)
    environ = {**os.environ, "VLLM_SERVER_DEV_MODE": "1"}
    with (
        subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=CALL_S) as http,
    ):
        try:
            wait_for(lambda: healthy(http), START_S)
            yield http
        finally:
            process.kill()


def healthy(http: httpx.Client) -> bool:
    try:
        return http.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def wait_for(condition: Any, within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module", params=[CONFORMANCE, REAL])
def shared(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with running(request.param) as http:
        yield http


@pytest.fixture
def server(shared: httpx.Client) -> Iterator[httpx.Client]:
    """A server that is awake, with its weights, before and after each test."""
    yield shared
    shared.post("/wake_up")
    shared.post("/collective_rpc", json={"method": "reload_weights"})
    assert completion(shared) != "!!!!"


def completion(http: httpx.Client, body: Any = PROMPT) -> str:
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def sleeping(http: httpx.Client) -> bool:
    return bool(http.get("/is_sleeping").json()["is_sleeping"])


def gauge(http: httpx.Client) -> set[str]:
    """Return the sleep states that the metrics report."""
    found = re.findall(
        r'^vllm:engine_sleep_state\{.*sleep_state="(\w+)"\} 1.0$', http.get("/metrics").text, re.MULTILINE
    )
    return set(found)


@pytest.mark.parametrize(("level", "state"), [(1, "weights_offloaded"), (2, "discard_all")])
def test_a_level_is_in_the_query_and_shown_by_the_gauge(server: httpx.Client, level: int, state: str) -> None:
    assert gauge(server) == {"awake"}
    answer = server.post(f"/sleep?level={level}")
    assert (answer.status_code, answer.json()) == (200, {"status": "sleeping", "level": level})
    assert sleeping(server)
    assert gauge(server) == {state}
    assert server.get("/health").status_code == 200, "it says nothing about sleep"


def test_a_body_is_ignored(server: httpx.Client) -> None:
    assert server.post("/sleep", json={"level": 2, "mode": "wait"}).json() == {"status": "sleeping", "level": 1}


@pytest.mark.parametrize("query", ["level=3", "level=-1", "level=x", "mode=now"])
def test_other_values_are_a_422_and_change_nothing(server: httpx.Client, query: str) -> None:
    answer = server.post(f"/sleep?{query}")
    assert answer.status_code == 422
    assert "Input should be" in answer.text
    assert not sleeping(server)


def test_a_second_sleep_changes_the_gauge_alone(server: httpx.Client) -> None:
    server.post("/sleep?level=1")
    server.post("/sleep?level=2")
    assert gauge(server) == {"discard_all"}
    server.post("/wake_up")
    assert EXPECTED in completion(server), "its weights were never dropped"


def test_a_request_to_a_sleeping_engine_waits_until_it_wakes(server: httpx.Client) -> None:
    server.post("/sleep?level=1")
    texts: list[str] = []
    waiting = threading.Thread(target=lambda: texts.append(completion(server)))
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    assert sleeping(server)
    assert server.post("/wake_up").json() == {"status": "awake", "tags": None}
    waiting.join(CALL_S)
    assert EXPECTED in texts[0]


def test_a_paused_engine_has_its_weights_and_answers_nothing(server: httpx.Client) -> None:
    assert server.post("/sleep?level=0").json() == {"status": "sleeping", "level": 0}
    assert sleeping(server)
    with pytest.raises(httpx.ReadTimeout):
        server.post("/v1/completions", json=PROMPT, timeout=0.5)
    assert server.post("/wake_up").json()["status"] == "awake"
    assert EXPECTED in completion(server)


def test_a_partial_wake_leaves_it_asleep(server: httpx.Client) -> None:
    server.post("/sleep?level=1")
    assert server.post("/wake_up?tags=weights").json() == {"status": "sleeping", "tags": ["weights"]}
    assert sleeping(server)
    assert server.post("/wake_up?tags=kv_cache").json() == {"status": "awake", "tags": ["kv_cache"]}
    assert EXPECTED in completion(server)


@pytest.mark.parametrize("query", ["tags=weights&tags=graphs", "tags=graphs"])
def test_an_unknown_tag_makes_the_whole_call_a_no_op_with_200(server: httpx.Client, query: str) -> None:
    server.post("/sleep?level=1")
    answer = server.post(f"/wake_up?{query}")
    assert (answer.status_code, answer.json()["status"]) == (200, "sleeping")
    assert server.post("/wake_up?tags=kv_cache").json()["status"] == "sleeping", "the weights sleep still"


def test_a_wake_from_level_2_without_a_reload_answers_garbage_with_200(server: httpx.Client) -> None:
    server.post("/sleep?level=2")
    assert server.post("/wake_up").json()["status"] == "awake"
    assert not sleeping(server)
    assert completion(server) == "!!!!"
    server.post("/collective_rpc", json={"method": "reload_weights"})
    assert EXPECTED in completion(server)


def test_level_2_is_left_in_the_order_of_the_contract(server: httpx.Client) -> None:
    server.post("/sleep?level=2")
    server.post("/wake_up?tags=weights")
    assert server.post("/collective_rpc", json={"method": "reload_weights"}).json() == {"results": [None]}
    assert server.post("/wake_up?tags=kv_cache").json()["status"] == "awake"
    assert server.post("/reset_prefix_cache").json() == {"success": True}
    assert EXPECTED in completion(server)


def test_a_call_without_a_method_is_a_400(server: httpx.Client) -> None:
    assert server.post("/collective_rpc", json={}).status_code == 400


@pytest.mark.parametrize("kind", [CONFORMANCE, REAL])
def test_without_sleep_mode_there_are_no_control_routes(kind: str) -> None:
    with running(kind, controls=False) as http:
        assert http.get("/is_sleeping").status_code == 404
        assert http.post("/sleep?level=1").status_code == 404
        assert EXPECTED in completion(http)


# ---- the real model alone: the conformance server decodes nothing ---------------------------------------------------


@pytest.fixture(scope="module")
def real_server() -> Iterator[httpx.Client]:
    with running(REAL) as http:
        yield http


@pytest.fixture
def real(real_server: httpx.Client) -> Iterator[httpx.Client]:
    yield real_server
    real_server.post("/wake_up")


def started(http: httpx.Client) -> tuple[threading.Thread, list[dict[str, Any]]]:
    """Start a long completion, and wait until it is decoded."""
    choices: list[dict[str, Any]] = []
    thread = threading.Thread(
        target=lambda: choices.append(http.post("/v1/completions", json=LONG).json()["choices"][0])
    )
    thread.start()
    wait_for(lambda: 'num_requests_running{engine="0",model_name="model"} 1.0' in http.get("/metrics").text)
    return thread, choices


def test_a_sleep_frees_the_memory_of_the_model(real: httpx.Client) -> None:
    assert completion(real)
    pid = _listener(real)
    awake = _rss(pid)
    for level in (1, 2):
        real.post(f"/sleep?level={level}")
        assert _rss(pid) < awake / 3
        real.post("/wake_up")
        real.post("/collective_rpc", json={"method": "reload_weights"})
        assert EXPECTED in completion(real)


def test_a_sleep_aborts_running_requests(real: httpx.Client) -> None:
    thread, choices = started(real)
    real.post("/sleep?level=1&mode=abort")
    thread.join(CALL_S)
    assert choices[0]["finish_reason"] == "abort"


def test_a_sleep_can_keep_running_requests_for_after_the_wake(real: httpx.Client) -> None:
    expected = completion(real, LONG)
    thread, choices = started(real)
    real.post("/sleep?level=1&mode=keep")
    thread.join(0.3)
    assert thread.is_alive()
    real.post("/wake_up")
    thread.join(CALL_S)
    assert choices[0]["text"] == expected


def test_a_sleep_can_wait_for_running_requests(real: httpx.Client) -> None:
    thread, choices = started(real)
    real.post("/sleep?level=1&mode=wait")
    thread.join(CALL_S)
    assert choices[0]["finish_reason"] == "length"


def test_all_requests_can_be_aborted(real: httpx.Client) -> None:
    thread, choices = started(real)
    assert real.post("/abort_requests", json={"request_ids": []}).json() == {"status": "aborted", "aborted": 1}
    thread.join(CALL_S)
    assert choices[0]["finish_reason"] == "abort"
    assert EXPECTED in completion(real)


def test_the_same_request_has_the_same_answer_after_each_load_and_in_each_order(real: httpx.Client) -> None:
    bodies = [{**PROMPT, "prompt": f"Loom {number} weaves", "max_tokens": 12} for number in range(4)]
    first = [completion(real, body) for body in bodies]
    for _ in range(2):
        real.post("/sleep?level=1")
        real.post("/wake_up")
        assert [completion(real, body) for body in reversed(bodies)] == first[::-1]


def test_a_stream_is_refused_with_what_to_leave_out(real: httpx.Client) -> None:
    answer = real.post("/v1/completions", json={**PROMPT, "stream": True})
    assert answer.status_code == 400
    assert "without `stream`" in answer.text


def _listener(http: httpx.Client) -> int:
    """Return the process that listens at the address of a client."""
    port = http.base_url.port
    for process in psutil.process_iter(["cmdline"]):
        if "treadle.testing.sleeping_vllm" in (line := process.info["cmdline"] or ()) and str(port) in line:
            return int(process.pid)
    raise AssertionError(f"nothing listens at {port}")


def _rss(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)
