"""The model server on an NVIDIA GPU: `make test ARGS=tests/services/gpu_manager/torch_server/test_cuda.py` there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.services.gpu_manager.torch_server.models import DECODER, write_decoder
from tests.services.gpu_manager.torch_server.server import running_server

LARGE: dict[str, Any] = {**DECODER, "hidden_size": 4096, "vocab_size": 65_536, "intermediate_size": 8192}
"""Of these about 2.5 GB are in weights, so that a copy takes longer than its start."""
SHARE = 0.8
"""Least bandwidth of a restore, as a part of that of a plain pinned copy (issue 16, point 7)."""


@pytest.fixture(scope="module")
def gpu(torch_installed: None) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no NVIDIA GPU here")


def test_results_on_the_gpu_are_those_of_the_cpu(gpu: None, tmp_path: Path) -> None:
    body = {"tokens": [[1, 2, 3, 4, 5], [6, 7]]}
    write_decoder(tmp_path)
    with running_server(tmp_path, "--device", "cpu") as server:
        expected = server.result("/v1/logprobs", body)["logprobs"]
    with running_server(tmp_path, "--device", "cuda:0") as server:
        first = server.post("/v1/logprobs", body).content
        for _ in range(3):
            before = server.result("/evict", None)
            assert (before["device_bytes"], before["residency"]) == (0, "asleep1")
            server.result("/restore", None)
            assert server.post("/v1/logprobs", body).content == first
    for found, wanted in zip(json.loads(first)["logprobs"], expected, strict=True):
        assert np.abs(np.array(found) - wanted).max() < 1e-3


def test_an_eviction_frees_the_memory_of_the_gpu(gpu: None, tmp_path: Path) -> None:
    import torch

    with running_server(write_decoder(tmp_path, LARGE), "--device", "cuda:0") as server:
        size = server.state()["device_bytes"]
        free_awake, _ = torch.cuda.mem_get_info(0)
        assert server.result("/evict", None)["reserved_bytes"] < 64 << 20
        free_asleep, _ = torch.cuda.mem_get_info(0)
        assert free_asleep - free_awake > 0.9 * size


def test_a_restore_has_the_bandwidth_of_a_pinned_copy(gpu: None, tmp_path: Path) -> None:
    """The best of five each: other work on the machine makes a copy slower, and nothing makes it faster."""
    with running_server(write_decoder(tmp_path, LARGE), "--device", "cuda:0") as server:
        size = server.state()["device_bytes"]
        took = []
        for _ in range(5):
            server.result("/evict", None)
            took.append(server.result("/restore", None)["took_s"]["restore"])
        server.result("/evict", None)
        plain = min(plain_copy_s(size) for _ in range(5))
    assert plain / min(took) >= SHARE, f"restore {min(took):.4f} s, plain pinned copy {plain:.4f} s of {size} bytes"


def plain_copy_s(size: int) -> float:
    """Return the seconds of a copy from pinned memory to new memory of the GPU."""
    import time

    import torch

    source = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    began = time.monotonic()
    target = torch.empty(size, dtype=torch.uint8, device="cuda:0")
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    took = time.monotonic() - began
    del target
    return took
