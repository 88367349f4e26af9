"""The process that judges: draws the inputs, measures the time, compares with the reference. It has no GPU.

It runs the trainer's reference and none of the sample. Its time of a launch begins before the word `go` and ends
with the answer of the process with the GPU; the time of an empty operation is subtracted. The larger of this time and
that of CUDA's events counts, so that a forged one of them does not make a kernel faster. The time of a trial is the
median of its launches: none of them can do the work of another, so a few slow ones make the others no faster.

| phase | what runs | its failure is that of |
| --- | --- | --- |
| `reference` | the trainer's reference, and the comparison | the trainer |
| `start` | the process with the GPU, before it reads anything of the sample | this node |
| `load`, `kernel` | the sample's module and kernel | the sample |

Laws:
  - answers of the process with the GPU are hostile from `load` on. Each one that has another form is a `Fault`;
  - the image of a launch is shown after the launch before it has ended and its outputs are copied.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from services.gpu_manager.kernels.arena import Arena, Array, Tensor, launches_of

EMPTY_TRIALS: Final = 3
MOST_REASON: Final = 500
"""Characters of a reason."""
MOST_DESCRIBED: Final = 128
MOST_MS: Final = 1e9
"""A longer time is not believed."""


class Fault(Exception):
    """The kernel has failed, or its process has ended."""

    def __init__(self, error_class: str, reason: str, call: str = "", code: int = 0) -> None:
        super().__init__(reason)
        self.error_class = error_class
        self.call, self.code = call, code
        """Function of CUDA's driver that has failed, and its error; empty: none."""


class Unusable(Exception):
    """The reference or a declaration cannot be used: no statement about the sample."""


class KernelJudge:
    """One attempt, case after case."""

    def __init__(self, job: dict[str, Any], channel: socket.socket, image: int, result: int) -> None:
        self._job, self._channel, self._reader = job, channel, channel.makefile("rb")
        self._image, self._result = image, result
        self._report: Callable[[str], None] = lambda _: None
        self.phase = "reference"
        self.device: dict[str, Any] = {}
        self.seeds: list[int] = []
        self.launches = 0

    def judge(self, phase: Callable[[str], None]) -> dict[str, Any]:
        """Return the report. `phase` is told what runs now."""
        self._report = phase
        self._phase("reference")
        reference = self._reference()
        self._phase("start")
        self.device = _described(self._answer())
        self._ask({"do": "reserve", "size": max(Arena(_tensors(case)).size for case in self._job["cases"])})
        self._phase("load")
        self._ask({"do": "load", "kernel": self._job["kernel"], "shared": max(c["shared"] for c in self._job["cases"])})
        cases: list[dict[str, Any]] = []
        for case in self._job["cases"]:
            cases.append(self._case(case, reference))
            if not cases[-1]["correct"]:
                break
        return {"cases": cases, **self.seen()}

    def _phase(self, name: str) -> None:
        self.phase = name
        self._report(name)

    def seen(self) -> dict[str, Any]:
        return {"device": self.device, "seeds": self.seeds, "launches": self.launches}

    def _reference(self) -> Callable[..., Any]:
        names: dict[str, Any] = {"np": np, "__name__": "reference"}
        try:
            exec(compile(self._job["reference"], "reference.py", "exec"), names)  # the trainer's
            found = names.get("reference")
        except Exception as error:
            raise Unusable(f"reference: {type(error).__name__}: {error}") from error
        if not callable(found):
            raise Unusable("reference: it defines no function `reference`")
        return found  # type: ignore[no-any-return]

    def _case(self, case: dict[str, Any], reference: Callable[..., Any]) -> dict[str, Any]:
        arena = Arena(_tensors(case))
        for descriptor in (self._image, self._result):
            os.ftruncate(descriptor, max(os.fstat(descriptor).st_size, arena.size))
        found: dict[str, Any] = {"sizes": case["sizes"], "correct": True, "max_error": 0.0, "why": ""}
        empty = [self._trial(case, arena, reference, found, empty=True)[0] for _ in range(EMPTY_TRIALS)]
        times, device = [], []
        for number in range(self._job["warmups"] + self._job["trials"]):
            wall_s, device_ms = self._trial(case, arena, reference, found)
            if not found["correct"]:
                return found
            if number >= self._job["warmups"]:
                own_ms = max(0.0, wall_s - statistics.median(empty)) * 1e3
                times.append(max(own_ms, device_ms))
                device.append(device_ms)
        found |= {
            "time_ms": statistics.median(times),
            "spread_ms": [min(times), max(times)],
            "device_ms": statistics.median(device),
            "trials": len(times),
            "launches_a_trial": launches_of(arena.tensors),
        }
        return found

    def _trial(
        self, case: dict[str, Any], arena: Arena, reference: Callable[..., Any], found: dict[str, Any],
        *, empty: bool = False,
    ) -> tuple[float, float]:  # fmt: skip
        """Run one trial and compare all of its launches, of which the first is a warm-up.

        Return medians of the others: wall seconds, and milliseconds of the events.
        """
        seed = secrets.randbits(63)
        self.seeds.append(seed)
        random = np.random.Generator(np.random.PCG64(seed))
        drawn = [
            {one.name: one.draw(random) for one in arena.tensors if not one.output}
            for _ in range(1 + launches_of(arena.tensors))
        ]
        images = [arena.image(inputs, random) for inputs in drawn]
        self._phase("kernel")
        self._ask({"do": "load", "kernel": self._job["kernel"], "shared": case["shared"]})
        ends = [self._launch(case, arena, image, empty=empty and n > 0) for n, image in enumerate(images)]
        self._phase("reference")
        for inputs, image, (_, _, copy) in list(zip(drawn, images, ends, strict=True))[: 1 if empty else None]:
            self._compare(arena, copy, inputs, case, reference, found)
            if found["correct"] and (strays := arena.strays(image, copy)):
                found |= {"correct": False, "why": f"it has changed {strays} bytes outside its outputs"}
        return statistics.median(end[0] for end in ends[1:]), statistics.median(end[1] for end in ends[1:])

    def _launch(
        self, case: dict[str, Any], arena: Arena, image: Array, *, empty: bool = False
    ) -> tuple[float, float, Array]:
        """Launch the kernel, or an empty operation. Return wall seconds, the events' ms, and the memory after it."""
        with mmap.mmap(self._image, arena.size) as memory:
            memory[:] = image.data
        arguments = [
            ["offset", arena.offsets[name]] if kind == "tensor" else ["bytes", name] for kind, name in case["arguments"]
        ]
        self._ask({"do": "launch", "dims": case["dims"], "shared": case["shared"], "size": arena.size,
                   "arguments": arguments, "empty": empty})  # fmt: skip
        began = time.perf_counter()
        self._channel.send(b"g")
        answer = self._answer()
        wall_s, device_ms = time.perf_counter() - began, _milliseconds(answer)
        self.launches += not empty
        self._ask({"do": "fetch", "size": arena.size})
        with mmap.mmap(self._result, arena.size) as memory:
            shared = np.frombuffer(memory, np.uint8)
            copy = shared.copy()  # the other process could change it while it is compared
            del shared
        return wall_s, device_ms, copy

    def _compare(
        self, arena: Arena, copy: Array, inputs: dict[str, Array], case: dict[str, Any],
        reference: Callable[..., Any], found: dict[str, Any],
    ) -> None:  # fmt: skip
        try:
            expected = reference(**inputs, **case["scalars"])
            wanted = [np.asarray(one) for one in (expected if isinstance(expected, tuple) else (expected,))]
        except Exception as error:
            raise Unusable(f"reference: {type(error).__name__}: {error}") from error
        outputs = arena.outputs(copy)
        if [one.shape for one in wanted] != [one.shape for one in outputs]:
            raise Unusable(f"reference: shapes {[one.shape for one in wanted]}, declared {[o.shape for o in outputs]}")
        for got, want in zip(outputs, wanted, strict=True):
            with np.errstate(all="ignore"):
                right = np.isclose(got.astype(np.float64), want.astype(np.float64), self._job["rtol"],
                                   self._job["atol"], equal_nan=True)  # fmt: skip
                distance = np.abs(got.astype(np.float64) - want.astype(np.float64))
            worst = float(np.max(distance[np.isfinite(distance)], initial=0.0))
            found["max_error"] = max(found["max_error"], worst)
            if not right.all():
                wrong = int(right.size - np.count_nonzero(right))
                found |= {"correct": False, "why": f"{wrong} of {right.size} elements are wrong"}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._channel.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise Fault("DeviceProcessEnded", "the process with the GPU has ended") from error
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._reader.readline(1 << 20)
            answer = json.loads(line) if line else None
        except (OSError, ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise Fault("DeviceProcessEnded", "the process with the GPU has ended")
        if "error" in answer:
            call, code = answer.get("call"), answer.get("code")
            raise Fault(
                "CudaError",
                str(answer["error"])[:MOST_REASON],
                call if isinstance(call, str) else "",
                code if isinstance(code, int) else 0,
            )
        return answer


def _tensors(case: dict[str, Any]) -> list[Tensor]:
    return [Tensor(**{**one, "shape": tuple(one["shape"])}) for one in case["tensors"]]


def _milliseconds(answer: dict[str, Any]) -> float:
    took = answer.get("device_ms")
    if not isinstance(took, int | float) or not 0 <= took < MOST_MS:
        raise Fault("BadAnswer", "the process with the GPU reports no time")
    return float(took)


def _described(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: str(answer[name])[:MOST_DESCRIBED] for name in ("device", "capability", "driver") if name in answer
    }
    return found | {"reads_host_memory": answer.get("reads_host_memory") is True}


def report_of(job: dict[str, Any], channel: socket.socket, image: int, result: int, out: int) -> None:
    """KernelJudge, and write phases and the report as lines of JSON to `out`."""

    def phase(name: str) -> None:
        os.write(out, json.dumps({"phase": name}).encode() + b"\n")

    judge = KernelJudge(job, channel, image, result)
    try:
        report = judge.judge(phase)
    except Fault as fault:
        report = {"fault": fault.error_class, "why": str(fault), "phase": judge.phase, "call": fault.call,
                  "code": fault.code, **judge.seen()}  # fmt: skip
    except Unusable as error:
        report = {"unusable": str(error)[:MOST_REASON]}
    os.write(out, json.dumps({"report": report}).encode() + b"\n")
