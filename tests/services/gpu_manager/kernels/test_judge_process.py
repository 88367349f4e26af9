"""The judge against a fake GPU, whose kernels are Python functions that cheat in the known ways."""

from __future__ import annotations

import json
import mmap
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from services.gpu_manager.kernels.arena import Array
from services.gpu_manager.kernels.judge_process import KernelJudge, report_of

N = 1000
Launch = Callable[[Array, list[int], dict[str, Any]], None]
"""Memory of the GPU, offsets of a, b and out, and what the module keeps between launches."""


class FakeDevice:
    """Speaks the protocol of `device_process`, over real shared memory."""

    def __init__(self, channel: socket.socket, image: int, result: int, launch: Launch) -> None:
        self._channel, self._image, self._result, self._launch = channel, image, result, launch
        self._memory: Array = np.zeros(1, np.uint8)
        self._kept: dict[str, Any] = {}
        self.refuses_load: dict[str, Any] | None = None
        """Answer to `load`; None: it loads."""

    def serve(self) -> None:
        self._send({"device": "fake"})
        for line in self._channel.makefile("rb"):
            request, answer = json.loads(line), {}
            if request["do"] == "warm":
                self._memory, self._kept = np.resize(self._memory, request["size"]), {}
                self._copy(0, request["first"])
                self._launch(self._memory, [value for _, value in request["set"]], self._kept)
            elif request["do"] == "trial":
                self._copy(request["first"], request["size"])
                self._send({"ready": True})
                self._channel.recv(1)
                for one in request["sets"] if not request["empty"] else ():
                    self._launch(self._memory, [value for _, value in one], self._kept)
                answer = {"device_ms": 0.5}
            elif request["do"] == "load" and self.refuses_load is not None:
                answer = self.refuses_load
            elif request["do"] == "fetch":
                with mmap.mmap(self._result, request["size"]) as result:
                    result[:] = self._memory.tobytes()
            self._send(answer)

    def _copy(self, begin: int, end: int) -> None:
        with mmap.mmap(self._image, end) as image:
            self._memory[begin:end] = np.frombuffer(image[begin:end], np.uint8)

    def _send(self, answer: dict[str, Any]) -> None:
        self._channel.sendall(json.dumps(answer).encode() + b"\n")


def floats(memory: Array, offset: int) -> Any:
    return memory[offset : offset + 4 * N].view(np.float32)


def right(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
    floats(memory, at[2])[:] = floats(memory, at[0]) + floats(memory, at[1])


def wrong(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
    floats(memory, at[2])[:] = floats(memory, at[0]) - floats(memory, at[1])


def nothing(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
    pass


def remembered(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
    if not kept:
        right(memory, at, kept)
        kept["out"] = floats(memory, at[2]).copy()
    floats(memory, at[2])[:] = kept["out"]


def tired(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
    kept["launches"] = kept.get("launches", 0) + 1
    if kept["launches"] < 3:
        right(memory, at, kept)


def works_ahead(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
    """It computes all outputs in the warm-up, before the time of the trial begins."""
    if kept:
        return
    kept["done"] = True
    stride = -(-(4 * N + 256) // 256) * 256 * 3
    while at[2] + 4 * N <= memory.size:
        right(memory, at, kept)
        at = [one + stride for one in at]


def overwrites_inputs(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
    floats(memory, at[0])[:] = 0
    floats(memory, at[1])[:] = 0
    right(memory, at, kept)


def writes_beside(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
    right(memory, at, kept)
    memory[at[2] + 4 * N] ^= 0xFF


def almost(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
    right(memory, at, kept)
    floats(memory, at[2])[-1] += 1


def job(**changes: Any) -> dict[str, Any]:
    tensors = [{"name": name, "output": name == "out", "dtype": "float32", "shape": [N]} for name in ("a", "b", "out")]
    case = {"sizes": {"n": N}, "tensors": tensors, "scalars": {}, "dims": [1] * 6, "shared": 0,
            "arguments": [["tensor", "a"], ["tensor", "b"], ["tensor", "out"]]}  # fmt: skip
    reference = "def reference(a, b):\n    return a + b\n"
    return {"kernel": "add", "cases": [case], "reference": reference, "rtol": 1e-3, "atol": 1e-5, "trials": 2,
            "warmups": 1} | changes  # fmt: skip


@pytest.fixture
def memories() -> Iterator[tuple[int, int]]:
    pair = os.memfd_create("image"), os.memfd_create("result")
    yield pair
    for descriptor in pair:
        os.close(descriptor)


def judged(memories: tuple[int, int], launch: Launch, **changes: Any) -> dict[str, Any]:
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    thread = threading.Thread(target=FakeDevice(theirs, *memories, launch).serve)
    thread.start()
    try:
        report_of(job(**changes), ours, *memories, write)
    finally:
        ours.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        ours.close()
        theirs.close()
        os.close(write)
    with os.fdopen(read, "rb") as lines:
        report: dict[str, Any] = json.loads(lines.read().splitlines()[-1])["report"]
    return report


def test_a_right_kernel_is_correct_and_timed(memories: tuple[int, int]) -> None:
    report = judged(memories, right)
    (case,) = report["cases"]
    assert case["correct"]
    assert case["trials"] == 2
    assert case["time_ms"] >= case["device_ms"] > 0
    assert len(set(report["seeds"])) == len(report["seeds"]) == 6


@pytest.mark.parametrize("launch", [wrong, nothing, remembered, tired, almost, works_ahead])
def test_a_wrong_output_of_any_launch_is_found(memories: tuple[int, int], launch: Launch) -> None:
    (case,) = judged(memories, launch)["cases"]
    assert not case["correct"]
    assert "elements are wrong" in case["why"]


@pytest.mark.parametrize("launch", [overwrites_inputs, writes_beside])
def test_a_change_outside_the_outputs_is_found(memories: tuple[int, int], launch: Launch) -> None:
    (case,) = judged(memories, launch)["cases"]
    assert not case["correct"]


def test_the_larger_of_the_two_clocks_counts(memories: tuple[int, int]) -> None:
    import time

    def slow(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
        time.sleep(0.01)
        right(memory, at, kept)

    (case,) = judged(memories, slow)["cases"]
    assert case["device_ms"] < case["time_ms"]


def test_a_reference_that_fails_is_no_statement_about_the_sample(memories: tuple[int, int]) -> None:
    report = judged(memories, right, reference="def reference(a, b):\n    raise KeyError('x')\n")
    assert "KeyError" in report["unusable"]


def test_a_device_process_that_ends_is_a_fault(memories: tuple[int, int]) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(Exception, match="has ended"):
        KernelJudge(job(), ours, *memories).judge(lambda _: None)
    ours.close()
