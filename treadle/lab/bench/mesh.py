"""The measured mesh: a stack of our own in a temporary folder, or a running one."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from treadle.lab.bench.figures import BenchError
from treadle.stack.services import PROXY
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

CALL_TIMEOUT_S = 120.0
"""Timeout of one call; a bulk batch and its results count as one."""
WAIT_S = 60
LENT_MB = 40_960
"""Memory for environments, independent of the machine: an idle one of the bench takes 5 MB and holds 32."""
TASK = "bench"
NOTHING = {"stages": [{"name": "noop", "kind": "noop"}]}
"""A workflow whose one stage does nothing."""


@dataclass(frozen=True, slots=True)
class BenchMesh:
    """Address of a mesh, and the processes and stores of a stack of our own."""

    url: str
    database_url: str | None = None
    pids: Mapping[str, int] = field(default_factory=dict)
    """Process of each service, ``valkey``, ``postgres`` and the supervisor (``treadle``) among them."""
    redis_url: str | None = None
    stack: RunningStack | None = None


@contextmanager
def own_mesh(
    cores: int, *, engine: bool = False, services: str = "", settings: Mapping[str, str] | None = None
) -> Iterator[BenchMesh]:
    """Start a durable stack as ``treadle up`` does, with a node of ``cores``. About 4 s.

    Args:
        engine: use the machine's container engine.
        services: services to run (default: ``STACK_SERVICES``), to measure a part of the mesh.
        settings: other settings.

    Raises:
        StackError: it did not start.
    """
    environ = {"CPU_MANAGER_CORES": str(cores), "CPU_MANAGER_NODE": f"bench-{os.getpid()}"}
    environ["CPU_MANAGER_MEMORY_MB"] = os.environ.get("CPU_MANAGER_MEMORY_MB", str(LENT_MB))
    if not engine:
        environ["CPU_MANAGER_ENGINE"] = "none"
    environ.update(settings or {})
    services = services or os.environ.get("STACK_SERVICES", "")
    with temporary_home() as root, running_stack(root, services=services, environ=environ) as stack:
        pids = {**stack.pids, "treadle": stack.supervisor.pid}
        yield BenchMesh(stack.urls[PROXY], stack.database_url, pids, stack.redis_url, stack)


def running_mesh(url: str) -> BenchMesh:
    """Return a running mesh by the address of its proxy.

    Raises:
        BenchError: the address is malformed.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise BenchError(f"--url {url!r} is no address: write it as http://127.0.0.1:8700")
    return BenchMesh(f"{parts.scheme}://{parts.netloc}")


class ActionTime(msgspec.Struct, frozen=True):
    """The part of an answer's completion time that is measured here, seconds."""

    execution_s: float
    overhead_s: float


class BenchAnswer(msgspec.Struct, frozen=True):
    """The part of an answer that is checked here."""

    state: str
    ended: str = ""
    passed: bool | None = None
    act: ActionTime | None = None
    cpu_s: float = 0.0


class BenchReceipt(msgspec.Struct, frozen=True):
    """The part of a bulk receipt that is checked here."""

    accepted: int
    repeated: int = 0


class BenchBatch(msgspec.Struct, frozen=True):
    """The part of a batch's view that is checked here."""

    state: str
    answered: int
    extra_delay_s: float | None


class BenchNode(msgspec.Struct, frozen=True):
    """Units that a node reports, by resource."""

    capacity: dict[str, int]
    owned: dict[str, int]
    owned_unit_s: dict[str, float]
    used_unit_s: dict[str, float]


class BenchNodes(msgspec.Struct, frozen=True):
    """All nodes."""

    nodes: list[BenchNode]


_answer = msgspec.json.Decoder(BenchAnswer)
_JSON = {"content-type": "application/json"}


class BenchClient:
    """Client of the mesh that checks every answer, because a wrong answer may be fast."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def act(self, body: bytes) -> BenchAnswer:
        """Submit one action (the JSON of an ActionRequest) and await its answer.

        Raises:
            BenchError: it was rejected, or did not end ``ok``.
        """
        async with self._http.post(f"/v1/actions?wait={WAIT_S}", data=body, headers=_JSON) as response:
            answered = await response.read()
        if response.status != 200:
            raise _refused("POST /v1/actions", response.status, answered)
        answer = _answer.decode(answered)
        if answer.ended != "ok":
            raise BenchError(f"an action ended {answer.ended!r}, not 'ok': {answered[:500].decode()}")
        return answer

    async def declare_task(self, name: str = TASK, workflow: object = NOTHING) -> None:
        """Create or replace a task."""
        await self._call("PUT", f"/v1/tasks/{name}", workflow)

    async def delete_task(self) -> None:
        await self._call("DELETE", f"/v1/tasks/{TASK}", None)

    async def open_batch(self, size: int, task: str = TASK) -> str:
        """Open a batch of the task; return its id."""
        opened = await self._call("POST", f"/v1/tasks/{task}/batches", {"size": size})
        return str(msgspec.json.decode(opened)["id"])

    async def report(self, batch: str, lengths: Sequence[float]) -> None:
        """Report the progress of a rollout: tokens so far of each sample that is still generated."""
        report = {"generating": len(lengths), "lengths": lengths}
        await self._call("POST", f"/v1/batches/{batch}/progress", report)

    async def read_batch(self, batch: str) -> BenchBatch:
        """Return the state of a batch."""
        return msgspec.json.decode(await self._call("GET", f"/v1/batches/{batch}", None), type=BenchBatch)

    async def nodes(self) -> list[BenchNode]:
        """Return the units of the nodes, as last reported."""
        return msgspec.json.decode(await self._call("GET", "/v1/nodes", None), type=BenchNodes).nodes

    async def submit_all(self, batch: str, lines: bytes, *, repeats: bool = False) -> int:
        """Submit reward requests (NDJSON); return the number accepted, with `repeats` including earlier ones."""
        headers = {"content-type": "application/x-ndjson"}
        async with self._http.post(f"/v1/rewards/bulk?batch={batch}", data=lines, headers=headers) as response:
            answered = await response.read()
        if response.status != 200:
            raise _refused("POST /v1/rewards/bulk", response.status, answered)
        receipt = msgspec.json.decode(answered, type=BenchReceipt)
        return receipt.accepted + (receipt.repeated if repeats else 0)

    async def text(self, path: str) -> str:
        """Return the body of a GET."""
        return (await self._call("GET", path, None)).decode()

    def follow(self, batch: str) -> AsyncIterator[bytes]:
        """Yield the results of a batch in pieces of complete and partial lines, until it has ended."""
        return self.results(batch, "?follow=true")

    async def results(self, batch: str, query: str = "") -> AsyncIterator[bytes]:
        """Yield the present results in pieces of complete and partial lines."""
        async with self._http.get(f"/v1/batches/{batch}/results{query}") as response:
            if response.status != 200:
                raise _refused("GET results", response.status, await response.read())
            async for piece in response.content.iter_any():
                yield piece

    async def call(self, method: str, path: str, body: object) -> dict[str, Any]:
        """Call any route; return its answer as JSON.

        Raises:
            BenchError: it was rejected.
        """
        answer: dict[str, Any] = msgspec.json.decode(await self._call(method, path, body))
        return answer

    async def call_empty(self, method: str, path: str) -> None:
        """Call a route that answers nothing.

        Raises:
            BenchError: it was rejected.
        """
        await self._call(method, path, None)

    async def _call(self, method: str, path: str, body: object) -> bytes:
        data = msgspec.json.encode(body) if body is not None else None
        async with self._http.request(method, path, data=data, headers=_JSON) as response:
            answered = await response.read()
        if response.status >= 300:
            raise _refused(f"{method} {path}", response.status, answered)
        return answered


def _refused(what: str, status: int, body: bytes) -> BenchError:
    return BenchError(f"{what} was answered {status}: {body[:500].decode(errors='replace')}")


@asynccontextmanager
async def client(
    mesh: BenchMesh, timeout_s: float | None = CALL_TIMEOUT_S, tenant: str | None = None
) -> AsyncIterator[BenchClient]:
    """Yield a client with one kept connection for each call in flight.

    Args:
        timeout_s: of one call.
        tenant: of every call; None: the default tenant.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    headers = {"Treadle-Tenant": tenant} if tenant else None
    async with aiohttp.ClientSession(mesh.url, connector=connector, timeout=timeout, headers=headers) as http:
        yield BenchClient(http)


Call = Callable[[], Awaitable[object]]
