"""Job of a judge: the declaration of a kernel, with its expressions evaluated for each case. Pure."""

from __future__ import annotations

import math
import struct
from typing import Any, Final

from shared.kinds.cuda import CudaKernel, KernelArgument, KernelCase, dimensions, evaluated, scalar

_FORMATS: Final = {
    "float16": "<e", "float32": "<f", "float64": "<d", "int8": "<b", "uint8": "<B", "int32": "<i", "int64": "<q",
}  # fmt: skip


def job_of(params: CudaKernel) -> dict[str, Any]:
    """Return the job, as JSON. The judge gets it, and the process with the GPU nothing of it but launches."""
    return {
        "kernel": params.kernel,
        "reference": params.reference,
        "rtol": params.rtol,
        "atol": params.atol,
        "trials": params.trials,
        "warmups": params.warmups,
        "cases": [_case(params, case) for case in params.cases],
    }


def _case(params: CudaKernel, case: KernelCase) -> dict[str, Any]:
    launch, sizes = params.launch, case.sizes
    tensors = [one for one in params.arguments if one.role != "scalar"]
    scalars = {one.name: scalar(one, sizes) for one in params.arguments if one.role == "scalar"}
    return {
        "sizes": dict(sizes),
        "tensors": [_tensor(one, case) for one in tensors],
        "scalars": scalars,
        "dims": [*dimensions(launch.grid, sizes), *dimensions(launch.block, sizes)],
        "shared": evaluated(launch.shared_bytes, sizes),
        "arguments": [_argument(one, scalars) for one in params.arguments],
    }


def _tensor(one: KernelArgument, case: KernelCase) -> dict[str, Any]:
    return {
        "name": one.name,
        "output": one.role == "output",
        "dtype": one.dtype,
        "shape": [evaluated(each, case.sizes) for each in one.shape],
        "distribution": one.distribution,
        "low": one.low,
        "high": one.high,
    }


def _argument(one: KernelArgument, scalars: dict[str, int | float]) -> list[str]:
    if one.role != "scalar":
        return ["tensor", one.name]
    return ["bytes", struct.pack(_FORMATS[one.dtype], scalars[one.name]).hex()]


def speedup(params: CudaKernel, times_ms: list[float]) -> float:
    """Return the geometric mean of baseline by time, over the cases."""
    ratios = [
        math.log((case.baseline_ms or 1.0) / max(took, 1e-6)) for case, took in zip(params.cases, times_ms, strict=True)
    ]
    return math.exp(sum(ratios) / len(ratios))
