"""The judge against a fake GPU, whose kernels are Python functions that cheat in the known ways."""

from __future__ import annotations

import json
import mmap
import os
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from services.gpu_manager.kernels.arena import Array
from services.gpu_manager.kernels.judge_process import KernelJudge, report_of

N = 1000
STRIDE = -(-(4 * N + 256) // 256) * 256 * 3
"""Bytes of a launch's tensors: those of the next launch would follow them."""
LAUNCHES = 17
"""In a trial, the warm-up included."""
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
            if request["do"] == "reserve":
                self._memory = np.zeros(request["size"], np.uint8)
            elif request["do"] == "load":
                self._kept, answer = {}, self.refuses_load or {}
            elif request["do"] == "launch":
                with mmap.mmap(self._image, request["size"]) as image:
                    self._memory[: request["size"]] = np.frombuffer(image[:], np.uint8)
                self._send({"ready": True})
                self._channel.recv(1)
                if not request["empty"]:
                    self._launch(self._memory, [value for _, value in request["arguments"]], self._kept)
                answer = {"device_ms": 0.5}
            elif request["do"] == "fetch":
                with mmap.mmap(self._result, request["size"]) as result:
                    result[:] = self._memory[: request["size"]].tobytes()
            self._send(answer)

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


def of_all(memory: Array, at: list[int], step: int) -> None:
    """Compute the outputs of all launches whose tensors are in memory, from these on."""
    with np.errstate(all="ignore"):  # it adds whatever is there
        while at[0] >= 0 and at[2] + 4 * N <= memory.size:
            right(memory, at, {})
            at = [one + step for one in at]


def works_ahead(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
    """It computes all outputs in the warm-up, before the time of the trial begins."""
    kept["launches"] = kept.get("launches", 0) + 1
    if kept["launches"] == 1:
        of_all(memory, at, STRIDE)


def works_for_later(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
    """Its first timed launch computes the outputs of all timed ones."""
    kept["launches"] = kept.get("launches", 0) + 1
    if kept["launches"] == 1:
        right(memory, at, kept)
    if kept["launches"] == 2:
        of_all(memory, at, STRIDE)


def works_for_earlier(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
    """Its last launch computes the outputs of all."""
    kept["launches"] = kept.get("launches", 0) + 1
    if kept["launches"] == 1:
        right(memory, at, kept)
    if kept["launches"] == LAUNCHES:
        of_all(memory, at, -STRIDE)


def answers_late(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
    """Each launch writes the output of the one before it; the warm-up and the last one also write their own."""
    kept["launches"] = kept.get("launches", 0) + 1
    if "late" in kept:
        offset, out = kept["late"]
        floats(memory, offset)[:] = out
    kept["late"] = at[2], floats(memory, at[0]) + floats(memory, at[1])
    if kept["launches"] in (1, LAUNCHES):
        right(memory, at, kept)


def overwrites_inputs(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
    floats(memory, at[0])[:] = 0
    floats(memory, at[1])[:] = 0
    right(memory, at, kept)


def writes_beside(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
    right(memory, at, kept)
    memory[at[2] + 4 * N] ^= 0xFF


def writes_before(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
    right(memory, at, kept)
    memory[at[0] - 1] ^= 0xFF


def writes_to_the_next(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
    """It writes where the output of a next launch would be."""
    right(memory, at, kept)
    floats(memory, at[2] + STRIDE)[:] = 0


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


@pytest.mark.parametrize("launch", [wrong, nothing, remembered, tired, almost])
def test_a_wrong_output_of_any_launch_is_found(memories: tuple[int, int], launch: Launch) -> None:
    (case,) = judged(memories, launch)["cases"]
    assert not case["correct"]
    assert "elements are wrong" in case["why"]


@pytest.mark.parametrize("launch", [works_ahead, works_for_later, works_for_earlier, answers_late])
def test_a_launch_that_does_the_work_of_others_is_wrong(memories: tuple[int, int], launch: Launch) -> None:
    (case,) = judged(memories, launch)["cases"]
    assert not case["correct"]
    assert "elements are wrong" in case["why"]


def test_the_gpu_has_the_inputs_and_outputs_of_one_launch_at_a_time(memories: tuple[int, int]) -> None:
    seen: list[Array] = []
    shown: list[bytes] = []

    def looks(memory: Array, at: list[int], kept: dict[str, Any]) -> None:
        seen.append(memory.copy())
        shown.append(os.pread(memories[0], 2 * memory.size, 0))
        right(memory, at, kept)

    (case,) = judged(memories, looks)["cases"]
    assert case["correct"]
    assert case["launches_a_trial"] == LAUNCHES - 1
    assert len(seen) == 3 * LAUNCHES + 3, "three trials, and the warm-up launches of three empty ones"
    assert shown == [one.tobytes() for one in seen], "the process with the GPU has no others either"
    for one, other in pairwise(seen):
        same = np.count_nonzero(one == other) / one.size
        assert same < 0.1, "inputs, outputs and all between them are drawn anew"


@pytest.mark.parametrize("launch", [overwrites_inputs, writes_beside, writes_before, writes_to_the_next])
def test_a_change_outside_the_outputs_is_found(memories: tuple[int, int], launch: Launch) -> None:
    (case,) = judged(memories, launch)["cases"]
    assert not case["correct"]
    if launch is not overwrites_inputs:
        assert "bytes outside its outputs" in case["why"]


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
