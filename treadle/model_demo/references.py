"""Reference answers and memory of each model, by the model alone: before the mesh runs, one request after the other."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from socket import socket
from typing import Any, Final

import aiohttp
import psutil

from treadle.mesh import mesh_command
from treadle.model_demo.cases import SERVICES, DemoCase, Service, Value, case_of, is_new, plain_value
from treadle.model_demo.engines import GIB
from treadle.model_demo.models import ALLOCATOR, DemoModels
from treadle.model_demo.samples import Solution

START_S: Final = 120.0
CALL_S: Final = 300.0
TRIES: Final = 4
"""Solutions that are tried for each case that is wanted: some answers are not new."""
PLAIN: Final = "treadle.testing.llamacpp"


class ModelFailed(Exception):
    """A model does not start, or does not answer alone. The message has the end of its output."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A case with its right answer."""

    case: DemoCase
    value: Value


@dataclass(frozen=True, slots=True)
class LoneModel:
    """A model as it is without the mesh."""

    service: Service
    references: list[Reference]
    awake_gb: float
    """Resident memory after requests."""
    asleep_gb: float
    """Resident memory while it sleeps."""


async def examined(
    models: DemoModels, solutions: Sequence[Solution], counts: dict[Service, int], entered: Callable[[str], None]
) -> dict[Service, LoneModel]:
    """Return all models with `counts` reference answers each. Seconds: a start, 2.5 s a judgement, 0.1 s a score.

    Args:
        entered: called with a title when a model begins.
    Raises:
        ModelFailed: a model does not start or answer, or too few solutions have different answers.
    """
    found = {}
    for service in SERVICES:
        entered(f"{service}: {counts[service]} reference answers by the model alone")
        found[service] = await _examined(models, service, solutions, counts[service])
    return found


async def _examined(models: DemoModels, service: Service, solutions: Sequence[Solution], count: int) -> LoneModel:
    references: list[Reference] = []
    if service == "judge":  # by llama.cpp alone, without the front that the mesh uses
        plain = [*mesh_command(PLAIN, str(models.weights)), "--port", "{port}"]
        async with _served(plain) as (http, _):
            references = await _references(http, service, solutions, count)
    async with _served(models.command(service)) as (http, pid):
        if not references:
            references = await _references(http, service, solutions, count)
        longest = max(references, key=lambda one: len(str(one.case.body)))
        await _post(http, longest.case.path, longest.case.body)
        awake = _rss_gb(pid)
        await _post(http, "/sleep?level=1" if service == "judge" else "/evict", {})
        return LoneModel(service, references, awake, _rss_gb(pid))


async def _references(
    http: aiohttp.ClientSession, service: Service, solutions: Sequence[Solution], count: int
) -> list[Reference]:
    found: list[Reference] = []
    for solution in solutions[: TRIES * count]:
        case = case_of(service, solution)
        value = plain_value(case, await _post(http, case.path, case.body))
        if value is not None and is_new(value, [one.value for one in found]):
            found.append(Reference(case, value))
        if len(found) == count:
            return found
    raise ModelFailed(f"{service}: only {len(found)} of {count} reference answers differ; use more solutions")


async def _post(http: aiohttp.ClientSession, path: str, body: Any) -> Any:
    async with http.post(path, json=body) as answer:
        if answer.status != 200:
            raise ModelFailed(f"POST {path} was answered with {answer.status}: {(await answer.text())[:500]}")
        return await answer.json()


@asynccontextmanager
async def _served(command: Sequence[str]) -> AsyncIterator[tuple[aiohttp.ClientSession, int]]:
    """Start a server at a free port, and stop it at the end. Yield a session with its address, and its process."""
    port = _free_port()
    argv = [part.replace("{port}", str(port)) for part in command]
    environ = {**os.environ, **ALLOCATOR, "VLLM_SERVER_DEV_MODE": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ, limit=1 << 20
    )
    output = bytearray()
    reading = asyncio.create_task(_tail(process, output))
    try:
        timeout = aiohttp.ClientTimeout(total=CALL_S)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=timeout) as http:
            await _healthy(http, process, output)
            yield http, process.pid
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def _tail(process: asyncio.subprocess.Process, output: bytearray) -> None:
    assert process.stderr is not None
    while part := await process.stderr.read(4096):
        output += part
        del output[:-2000]


async def _healthy(http: aiohttp.ClientSession, process: asyncio.subprocess.Process, output: bytearray) -> None:
    deadline = asyncio.get_running_loop().time() + START_S
    while asyncio.get_running_loop().time() < deadline:
        if process.returncode is not None:
            raise ModelFailed(f"a model's server ended instead of starting: {output.decode(errors='replace')}")
        try:
            async with http.get("/health") as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.05)
    raise ModelFailed(f"a model's server did not answer within {START_S:g} s: {output.decode(errors='replace')}")


def _free_port() -> int:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _rss_gb(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / GIB
