"""Parameters of kinds that compile and run CUDA kernels, and the expressions in their sizes. Declarations only, pure.

A kernel is one `extern "C" __global__` function. Its launch and its arguments are declared, so that no host code of the
sample is executed. Expressions are integers, names of sizes, `+ - * // %`, `ceildiv(a, b)`, `min` and `max`.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec

from shared.kinds.spec import Params
from shared.runtime.patterns import GPU_ARCHITECTURE, SYMBOL, whole

MOST_SOURCE: Final = 1 << 20
"""Characters of a source."""
MOST_MODULE: Final = 4 << 20
"""Bytes of a compiled module."""
MOST_TENSOR_BYTES: Final = 1 << 30
"""Bytes of all inputs and outputs of a case. The host holds several copies of them."""
MOST_THREADS: Final = 1024
"""Threads of a block."""
MOST_GRID: Final = ((1 << 31) - 1, 65_535, 65_535)
"""Blocks of a grid, by dimension."""
MOST_NUMBER: Final = 1 << 40
MOST_EXPRESSION: Final = 128

Dtype = Literal["float16", "float32", "float64", "int8", "uint8", "int32", "int64"]
SIZES: Final[dict[str, int]] = {
    "float16": 2, "float32": 4, "float64": 8, "int8": 1, "uint8": 1, "int32": 4, "int64": 8,
}  # fmt: skip
"""Bytes of one element."""
MOST_FLOAT: Final[dict[str, float]] = {"float16": 65504.0, "float32": 3.4028234e38, "float64": 1.797e308}
"""Largest finite value of a type."""
Symbol = Annotated[str, msgspec.Meta(pattern=whole(SYMBOL))]
Expression = int | Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_EXPRESSION)]
Dimensions = Annotated[list[Expression], msgspec.Meta(min_length=1, max_length=3)]
Architecture = Annotated[str, msgspec.Meta(pattern=whole(GPU_ARCHITECTURE))]

_OPERATORS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: Final[dict[str, Callable[[int, int], int]]] = {
    "ceildiv": lambda one, other: -(-one // other),
    "min": min,
    "max": max,
}


def evaluated(expression: int | str, sizes: Mapping[str, int]) -> int:
    """Return the value of an expression, from 0 to `MOST_NUMBER`.

    Raises:
        ValueError: it is none, or names an unknown size.
    """
    try:
        value = expression if isinstance(expression, int) else _value(ast.parse(expression, mode="eval").body, sizes)
    except (SyntaxError, RecursionError, MemoryError, ZeroDivisionError) as error:
        raise ValueError(f"{expression!r} is no expression: {error}") from error
    return _bounded(value, expression)


def _bounded(value: int, expression: object) -> int:
    if not 0 <= value <= MOST_NUMBER:
        raise ValueError(f"{expression!r} is {value}, and should be from 0 to {MOST_NUMBER}")
    return value


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return _bounded(node.value, node.value)
    if isinstance(node, ast.Name):
        if node.id not in sizes:
            raise ValueError(f"there is no size {node.id!r}; `sizes` has {', '.join(sorted(sizes)) or 'none'}")
        return sizes[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value = _OPERATORS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        if len(node.args) != 2 or node.keywords:
            raise ValueError(f"{node.func.id} has two arguments")
        value = _FUNCTIONS[node.func.id](_value(node.args[0], sizes), _value(node.args[1], sizes))
    else:
        raise ValueError("write integers, names of sizes, + - * // %, ceildiv(a, b), min(a, b), max(a, b)")
    if abs(value) > MOST_NUMBER:
        raise ValueError(f"an intermediate value is beyond {MOST_NUMBER}")
    return value


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class KernelArgument(_Part, frozen=True, kw_only=True):
    """One argument of a kernel, in the order of its declaration."""

    name: Symbol
    role: Literal["input", "output", "scalar"]
    dtype: Dtype
    shape: Annotated[list[Expression], msgspec.Meta(max_length=8)] = []
    """Of inputs and outputs: row-major."""
    distribution: Literal["normal", "uniform", "integers"] = "normal"
    """Of inputs: standard normal; uniform in [low, high); integers in [low, high). Integer types are `integers`."""
    low: float = 0.0
    high: float = 1.0
    value: float | Expression = 0
    """Of scalars: a number, or an expression."""


class KernelLaunch(_Part, frozen=True, kw_only=True):
    """Launch of a kernel."""

    grid: Dimensions
    block: Dimensions
    shared_bytes: Expression = 0
    """Dynamic shared memory."""


class KernelCase(_Part, frozen=True, kw_only=True):
    """One set of sizes for which the kernel is judged."""

    sizes: Annotated[dict[Symbol, Annotated[int, msgspec.Meta(ge=0, le=MOST_NUMBER)]], msgspec.Meta(max_length=32)] = {}
    baseline_ms: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Time with which the kernel is compared; needed for the score `speedup`."""


class CudaCompile(Params, frozen=True, kw_only=True):
    """Compile a CUDA source in the sandbox. Only device code is made; the module is the artifact of the stage.

    A source that does not compile fails: its score is 0, and the compiler's text is in the output.
    """

    code: Annotated[str, msgspec.Meta(max_length=MOST_SOURCE)]
    arch: Architecture | None = None
    """`sm_90`: machine code of that GPU. `compute_90`: PTX, which the driver compiles. Null: as the node's setting."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 120.0
    memory_mb: Annotated[int, msgspec.Meta(ge=256, le=65536)] = 4096


class CudaKernel(Params, frozen=True, kw_only=True):
    """Run a compiled kernel alone on a GPU: correctness against a reference on fresh inputs, and time.

    In a task, a stage of the kind `cuda.compile` is before it. The kernel may run for half of the stage's `timeout_s`;
    its start and the reference have the other half.
    """

    kernel: Symbol
    """Name of the `extern "C" __global__` function."""
    arguments: Annotated[list[KernelArgument], msgspec.Meta(min_length=1, max_length=64)]
    launch: KernelLaunch
    cases: Annotated[list[KernelCase], msgspec.Meta(min_length=1, max_length=16)]
    reference: Annotated[str, msgspec.Meta(max_length=MOST_SOURCE)]
    """Python source of `reference(**inputs_and_scalars)`, which returns the expected output, or a tuple in the order of
    the outputs. NumPy is there as `np`. It is the trainer's code, and runs behind walls without the GPU."""
    rtol: Annotated[float, msgspec.Meta(ge=0)] = 1e-3
    atol: Annotated[float, msgspec.Meta(ge=0)] = 1e-5
    trials: Annotated[int, msgspec.Meta(ge=1, le=100)] = 5
    """Timed trials of a case. Each has inputs of its own, and every launch is compared."""
    warmups: Annotated[int, msgspec.Meta(ge=0, le=20)] = 2
    """Trials before them, which are compared and not timed."""
    score: Literal["correct", "speedup"] = "correct"
    """`correct`: 1 or 0. `speedup`: geometric mean of baseline by time if correct, else 0."""

    def __post_init__(self) -> None:
        names = [one.name for one in self.arguments]
        if len(set(names)) < len(names):
            raise ValueError("arguments: two have the same name")
        if not any(one.role == "output" for one in self.arguments):
            raise ValueError('arguments: none has the role "output"')
        if self.score == "speedup" and any(case.baseline_ms is None for case in self.cases):
            raise ValueError("cases: the score `speedup` needs `baseline_ms` in each")
        for case in self.cases:
            self._check_case(case.sizes)

    def _check_case(self, sizes: Mapping[str, int]) -> None:
        launch = self.launch
        evaluated(launch.shared_bytes, sizes)
        block, grid = (dimensions(each, sizes) for each in (launch.block, launch.grid))
        if not 1 <= math.prod(block) <= MOST_THREADS:
            raise ValueError(
                f"launch.block: {block} has {math.prod(block)} threads, and should have 1 to {MOST_THREADS}"
            )
        if any(not 1 <= here <= most for here, most in zip(grid, MOST_GRID, strict=True)):
            raise ValueError(f"launch.grid: {grid} should be from 1 to {MOST_GRID}")
        size = 0
        for one in self.arguments:
            if one.role != "scalar":
                size += SIZES[one.dtype] * math.prod(evaluated(each, sizes) for each in one.shape)
            else:
                scalar(one, sizes)
        if size > MOST_TENSOR_BYTES:
            raise ValueError(f"cases: inputs and outputs have {size} bytes, and may have {MOST_TENSOR_BYTES}")


class CudaProgram(CudaKernel, frozen=True, kw_only=True):
    """Compile a CUDA kernel, and run it alone on a GPU: correctness against a reference on fresh inputs, and time.

    The action has two stages: `cuda.compile` on a core, then `cuda.kernel` on a GPU.
    """

    code: Annotated[str, msgspec.Meta(max_length=MOST_SOURCE)]
    """CUDA source. Only device code is made."""
    arch: Architecture | None = None
    """`sm_90`: machine code of that GPU. `compute_90`: PTX, which the driver compiles. Null: as the node's setting."""
    memory_mb: Annotated[int, msgspec.Meta(ge=256, le=65536)] = 4096
    """Memory of the compiler."""


def dimensions(given: Sequence[int | str], sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """Return the three dimensions of a grid or block. Missing ones are 1."""
    first, second, third = [*(evaluated(each, sizes) for each in given), 1, 1][:3]
    return first, second, third


def scalar(argument: KernelArgument, sizes: Mapping[str, int]) -> int | float:
    """Return the value of a scalar argument.

    Raises:
        ValueError: its type cannot hold the value.
    """
    value = argument.value if isinstance(argument.value, float) else evaluated(argument.value, sizes)
    if argument.dtype.startswith("float"):
        if abs(value) > MOST_FLOAT[argument.dtype]:
            raise ValueError(f"argument {argument.name!r}: {value} is no {argument.dtype}")
        return float(value)
    bits, signed = 8 * SIZES[argument.dtype], not argument.dtype.startswith("u")
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    if value != int(value) or not low <= value <= high:
        raise ValueError(f"argument {argument.name!r}: {value} is no {argument.dtype}")
    return int(value)
