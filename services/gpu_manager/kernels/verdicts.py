"""Verdict of an attempt of a kernel: what the judge's report means for the sample.

| end | result |
| --- | --- |
| all cases are correct | `ok`, passed, the score |
| an output is wrong, or memory beside it has changed | `ok`, not passed, score 0 |
| the module cannot be loaded, the kernel faults, or its process ends | the same, if the GPU works still (`probe`) |
| the module or the kernel uses up its time | `timeout`, not passed, if the GPU works still |
| the module is for another GPU or driver; the reference cannot be used, or uses up its time | `refused` |
| the process with the GPU cannot start, the judge ends, or the GPU does not work afterwards | `lost` |

Law: from the phase `load` on, what the process with the GPU says of an error of this node is not believed. A new
process asks the GPU. So a kernel cannot get its failure masked, unless it breaks the GPU for other processes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from services.gpu_manager.kernels.attempt import AttemptEnd, GpuAccess, RoleCommands, attempt, probe
from services.gpu_manager.kernels.job import job_of, speedup
from shared.kinds.cuda import CudaKernel
from shared.policy.model.results import AttemptResult, lost, refused

MOST_REASON: Final = 400
NOT_FOUND: Final = 500
"""CUDA_ERROR_NOT_FOUND."""
OTHER_GPU: Final = frozenset({200, 209, 221, 222})
"""Errors of a module for another GPU or driver: CUDA_ERROR_INVALID_IMAGE, _NO_BINARY_FOR_GPU, _JIT_COMPILER_NOT_FOUND,
_UNSUPPORTED_PTX_VERSION. The compiler makes valid images, so a source cannot cause them."""
_SAMPLE: Final = ("load", "kernel")

Probe = Callable[[], Awaitable[str]]


async def judged(
    params: CudaKernel, module: bytes, gpu: GpuAccess, limit_s: float, commands: RoleCommands = RoleCommands()
) -> AttemptResult:
    """Run a kernel on a GPU that nothing else uses, and return its verdict.

    Cancellation kills its processes. Costs two starts of Python with NumPy, about half a second, beside the kernel.
    """
    try:
        end = await attempt(job_of(params), module, gpu, limit_s, commands)
    except OSError as error:
        return lost(f"the processes of the kernel cannot be started: {error}")
    result = await _result(params, end, lambda: probe(gpu, commands))
    return msgspec.structs.replace(result, usage={"gpu_s": end.took_s})


async def _result(params: CudaKernel, end: AttemptEnd, ask: Probe) -> AttemptResult:
    if end.hung:
        return await _hung(end, ask)
    report = end.report
    if report is None:
        return lost(f"the judge has ended in the phase {end.phase}; {end.words}"[:MOST_REASON])
    if "unusable" in report:
        return refused(str(report["unusable"])[:MOST_REASON])
    if "fault" in report:
        return await _fault(report, end, ask)
    return _judged(params, report)


async def _hung(end: AttemptEnd, ask: Probe) -> AttemptResult:
    if end.phase == "reference":
        return refused("reference: half of timeout_s was not enough for it; raise timeout_s, or make it faster")
    if end.phase not in _SAMPLE:
        return lost(f"the processes of the kernel have not started in time; {end.words}"[:MOST_REASON])
    if why := await ask():
        return lost(f"the GPU does not work after a kernel that was killed: {why}"[:MOST_REASON])
    reason = f"The {'module' if end.phase == 'load' else 'kernel'} has used up its half of timeout_s."
    return AttemptResult(
        "timeout", False, None, _encode({"error_class": "TimeLimitExceeded"}), reason, evidence="separate"
    )


async def _fault(report: dict[str, Any], end: AttemptEnd, ask: Probe) -> AttemptResult:
    why, call, code = str(report["why"]), report["call"], report["code"]
    if report["phase"] not in _SAMPLE:
        return lost(f"the GPU cannot be used: {why}; {end.words}"[:MOST_REASON])
    if report["phase"] == "load" and call == "cuModuleLoadData" and code in OTHER_GPU:
        gpu = report["device"].get("capability", "another GPU")
        return refused(f"the module cannot be loaded on {gpu}: {why}; set `arch` to {gpu}, or CPU_MANAGER_CUDA_ARCH")
    if broken := await ask():
        return lost(f"the GPU does not work after a kernel: {broken}"[:MOST_REASON])
    if call == "cuModuleGetFunction" and code == NOT_FOUND:
        return _wrong("KernelNotFound", 'the source has no `extern "C" __global__` function of this name', report)
    return _wrong("ModuleError" if report["phase"] == "load" else str(report["fault"]), why, report)


def _wrong(error_class: str, why: str, report: dict[str, Any], **more: Any) -> AttemptResult:
    output = {"error_class": error_class, **_seen(report), **more}
    return AttemptResult("ok", False, 0.0, _encode(output), why[:MOST_REASON], evidence="separate")


def _judged(params: CudaKernel, report: dict[str, Any]) -> AttemptResult:
    cases = report["cases"]
    if not cases[-1]["correct"]:
        return _wrong("WrongOutput", str(cases[-1]["why"]), report, cases=cases)
    score = 1.0
    if params.score == "speedup":
        score = speedup(params, [case["time_ms"] for case in cases])
    return AttemptResult("ok", True, score, _encode({"cases": cases, **_seen(report)}), evidence="separate")


def _seen(report: dict[str, Any]) -> dict[str, Any]:
    return {"gpu": report.get("device", {}), "launches": report.get("launches", 0)}


_encode: Final = msgspec.json.Encoder().encode
