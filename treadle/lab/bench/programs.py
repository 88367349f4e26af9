"""Graded Python programs, compared with a fresh interpreter for each."""

import asyncio
import itertools
import statistics
import sys
from functools import partial

import msgspec

from treadle.lab.bench.bench import MESH, Bench
from treadle.lab.bench.closed_loop import closed_loop
from treadle.lab.bench.contest import Contestant, medians, ratio, run_rounds
from treadle.lab.bench.figures import BenchError, BenchFigure, at_least, at_most, figure
from treadle.lab.bench.mesh import BenchClient, Call

CODE = "def double(x):\n    return 2 * x\n"
TESTS = "assert double({n}) == {n} + {n}\n"
USUAL_IMPORTS = "import json, math, re, unittest\n"
INTERPRETER = "fresh interpreter"
INTERPRETERS_AT_ONCE = 2
INTERPRETER_TIMEOUT_S = 60.0


def grading(http: BenchClient, used_s: list[float] | None = None) -> Call:
    """Return a call that grades a trivial program against one assert. All bodies differ, so none can be cached.

    Args:
        used_s: receives the CPU seconds of each answer.

    The call raises BenchError when the program did not pass.
    """
    numbers = itertools.count(1)

    async def call() -> None:
        params = {"code": CODE, "tests": TESTS.format(n=next(numbers))}
        answer = await http.act(msgspec.json.encode({"kind": "code.asserts", "params": params}))
        if answer.passed is not True:
            raise BenchError("a correct program was not graded as passed")
        if used_s is not None:
            used_s.append(answer.cpu_s)

    return call


async def fresh_interpreter() -> None:
    """Grade without a mesh: start Python, import the usual modules, run the same program."""
    source = USUAL_IMPORTS + CODE + TESTS.format(n=21)
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", source)
    try:
        async with asyncio.timeout(INTERPRETER_TIMEOUT_S):
            status = await process.wait()
    except TimeoutError:
        process.kill()
        raise BenchError(f"a fresh interpreter did not end in {INTERPRETER_TIMEOUT_S:.0f} s") from None
    if status != 0:
        raise BenchError(f"a fresh interpreter ended with status {status}")


async def graded_programs(bench: Bench) -> list[BenchFigure]:
    """Trivial programs: the rate with many callers, and the latency with one."""
    sizes, meter = bench.sizes, bench.meter()
    used_s: list[float] = []
    async with bench.warm(lambda http: grading(http, used_s), sizes.program_callers) as call:
        many = partial(closed_loop, call, callers=sizes.program_callers, seconds=sizes.seconds)
        plainly = partial(closed_loop, fresh_interpreter, callers=INTERPRETERS_AT_ONCE, seconds=sizes.seconds)
        contestants: dict[str, Contestant] = {MESH: meter.over(many), INTERPRETER: plainly}
        results = medians(await run_rounds(contestants, sizes.rounds, bench.log))
        alone = await closed_loop(call, callers=1, seconds=sizes.seconds)
    own, plain = results[MESH], results[INTERPRETER]
    who = f"{sizes.program_callers} callers"
    return [
        figure("programs.rate", f"graded Python programs, {who}", own.rate, "/s", at_least(200)),
        figure("programs.interpreter.rate", f"fresh interpreters, {INTERPRETERS_AT_ONCE} at a time", plain.rate, "/s"),
        figure("programs.rate/interpreter", "rate over theirs", ratio(own.rate, plain.rate), "x", at_least(6)),
        figure("programs.p50", "graded program, one caller, p50", alone.p50_s * 1e3, "ms", at_most(8)),
        figure("programs.cpu.program", "CPU of a program, by its answer", statistics.fmean(used_s) * 1e6, "us"),
        *meter.figures("programs"),
    ]
