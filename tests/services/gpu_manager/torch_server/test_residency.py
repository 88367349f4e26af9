"""Eviction and restore of real weights: memory, equal results, and requests meanwhile."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import psutil

from tests.services.gpu_manager.torch_server.server import RunningServer, running_server

TEXTS = ["A man is playing a guitar.", "The stock market fell.", "Penguins live in the south. " * 12]
CYCLES = 4


def test_memory_follows_residency(embedder: RunningServer) -> None:
    """On a CPU the device copy is real memory: 90 MB of it come and go."""
    process = psutil.Process(embedder.process.pid)
    embedder.result("/v1/embed", {"inputs": TEXTS})
    before = embedder.state()
    assert before["residency"] == "resident"
    assert before["device_bytes"] == before["host_bytes"] > 90_000_000
    for _ in range(CYCLES):
        awake = process.memory_info().rss
        asleep = embedder.result("/evict", None)
        freed = awake - process.memory_info().rss
        assert (asleep["residency"], asleep["device_bytes"]) == ("asleep1", 0)
        assert asleep["host_bytes"] == before["host_bytes"]
        assert freed > 0.95 * before["device_bytes"]
        assert embedder.result("/restore", None)["device_bytes"] == before["device_bytes"]
        assert process.memory_info().rss - awake > -0.05 * before["device_bytes"]
    assert set(embedder.state()["took_s"]) == {"evict", "restore"}


def test_results_are_the_same_bits_after_each_restore(embedder: RunningServer) -> None:
    body = {"inputs": TEXTS}
    first = embedder.post("/v1/embed", body).content
    for _ in range(CYCLES):
        embedder.result("/evict", None)
        embedder.result("/restore", None)
        assert embedder.post("/v1/embed", body).content == first


def test_evict_and_restore_may_be_repeated(scorer: RunningServer) -> None:
    for path, residency in (("/evict", "asleep1"), ("/evict", "asleep1"), ("/restore", "resident")) * 2:
        assert scorer.result(path, None)["residency"] == residency


def test_an_evicted_model_answers_409_and_restores_nothing(scorer: RunningServer) -> None:
    scorer.result("/evict", None)
    try:
        for _ in range(3):
            answer = scorer.post("/v1/score", {"inputs": ["w1"]})
            assert (answer.status_code, answer.json()["code"]) == (409, "evicted")
        assert scorer.state()["residency"] == "asleep1"
        assert scorer.client.get("/health").status_code == 200
    finally:
        scorer.result("/restore", None)


def test_requests_and_evictions_together_give_a_right_answer_or_409(embedder: RunningServer) -> None:
    right = [np.array(embedder.result("/v1/embed", {"inputs": [text]})["embeddings"][0]) for text in TEXTS]
    ended, idle = threading.Event(), threading.Barrier(4, timeout=60)
    evictions: Counter[int] = Counter()

    def ask(number: int) -> Counter[str]:
        seen: Counter[str] = Counter()
        with httpx.Client(base_url=embedder.url, timeout=60) as client:
            for turn in range(40):
                if turn % 5 == 4:
                    idle.wait()  # a running request keeps an eviction out, and some always run on a slow machine
                    time.sleep(0.05)
                chosen = (number + turn) % len(TEXTS)
                answer = client.post("/v1/embed", json={"inputs": [TEXTS[chosen]]})
                if answer.status_code == 200:
                    assert np.abs(np.array(answer.json()["embeddings"][0]) - right[chosen]).max() < 1e-5
                    seen["right"] += 1
                else:
                    assert (answer.status_code, answer.json()["code"]) == (409, "evicted")
                    seen["evicted"] += 1
                time.sleep(0.001 * number)
        return seen

    def swap() -> None:
        with httpx.Client(base_url=embedder.url, timeout=60) as client:
            while not ended.is_set():
                evictions[client.post("/evict").status_code] += 1
                assert client.post("/restore").json()["residency"] == "resident"

    with ThreadPoolExecutor() as pool:
        swapping = pool.submit(swap)
        try:
            seen = sum(pool.map(ask, range(4)), Counter())
        finally:
            ended.set()
        swapping.result()
    assert set(evictions) <= {200, 409}
    assert evictions[200] > 0
    assert seen["right"] > 0
    assert seen["right"] + seen["evicted"] == 160


def test_an_eviction_while_a_request_runs_is_rejected(embedder: RunningServer) -> None:
    body = {"inputs": [f"{number} " + "word " * 200 for number in range(256)]}
    with ThreadPoolExecutor() as pool:
        long = pool.submit(embedder.post, "/v1/embed", body)
        while not embedder.state()["running"]:
            assert not long.done()
        busy = embedder.post("/evict")
        assert (busy.status_code, busy.json()["code"]) == (409, "busy")
        assert "1 requests run" in busy.json()["message"]
        assert embedder.post("/restore").status_code == 200
        embedder.result("/abort", None)
        aborted = long.result()
    assert (aborted.status_code, aborted.json()["code"]) == (409, "aborted")
    assert embedder.result("/evict", None)["residency"] == "asleep1"
    assert embedder.result("/restore", None)["running"] == 0


def test_a_client_that_leaves_withdraws_its_request(embedder: RunningServer) -> None:
    body = {"inputs": [f"{number} " + "word " * 200 for number in range(1024)]}
    with httpx.Client(base_url=embedder.url, timeout=0.5) as client:
        try:
            client.post("/v1/embed", json=body)
            raise AssertionError("1,024 long texts were embedded in half a second")
        except httpx.ReadTimeout:
            pass
    limit = time.monotonic() + 30
    while embedder.state()["running"]:
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_a_request_that_takes_too_long_ends_with_504(minilm: Path) -> None:
    """The batch that is being computed ends. It is small here, so the next request is in time."""
    with running_server(minilm, "--device", "cpu", "--timeout-s", "2", "--batch-tokens", "256") as server:
        answer = server.post("/v1/embed", {"inputs": ["word " * 250] * 1024})
        assert (answer.status_code, answer.json()["code"]) == (504, "timeout")
        assert server.result("/v1/embed", {"inputs": ["short"]})["embeddings"]
