"""The mesh that is measured: a stack of our own in a folder that goes away, or one that runs already."""

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
"""For one call; a bulk batch and its results count as one."""
WAIT_S = 60
LENT_MB = 40_960
"""For environments, whatever the machine has: the bench's rest at 5 MB each, and hold 32."""
TASK = "bench"
NOTHING = {"stages": [{"name": "noop", "kind": "noop"}]}
"""A workflow whose one stage does nothing."""


@dataclass(frozen=True, slots=True)
class BenchMesh:
    """Where it answers; what else is known of it where the stack is ours."""

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
    """A stack with durability on, as ``treadle up`` starts it, whose node offers ``cores``. About 4 s.

    ``engine``: it may use the machine's container engine; else it looks for none. ``settings``: others than usual.

    ``services``, or ``STACK_SERVICES``, says which run, so a part of the mesh can be measured.

    Raises:
        StackError: it did not come up.
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
    """A mesh that runs already and is known by the address of its proxy alone.

    Raises:
        BenchError: that is no address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise BenchError(f"--url {url!r} is no address; write it as http://127.0.0.1:8700")
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
    """What a node says of its units, by resource."""

    owned: dict[str, int]
    owned_unit_s: dict[str, float]
    used_unit_s: dict[str, float]


class BenchNodes(msgspec.Struct, frozen=True):
    """All nodes."""

    nodes: list[BenchNode]


_answer = msgspec.json.Decoder(BenchAnswer)
_JSON = {"content-type": "application/json"}


class BenchClient:
    """Calls the mesh; every answer is checked, for a wrong one is quickly given."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def act(self, body: bytes) -> BenchAnswer:
        """One action (the JSON of an ActionRequest), awaited.

        Raises:
            BenchError: it was refused, or did not end ``ok``.
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
        """Make (again) a task."""
        await self._call("PUT", f"/v1/tasks/{name}", workflow)

    async def delete_task(self) -> None:
        await self._call("DELETE", f"/v1/tasks/{TASK}", None)

    async def open_batch(self, size: int, task: str = TASK) -> str:
        """A fresh batch of the task; its id."""
        opened = await self._call("POST", f"/v1/tasks/{task}/batches", {"size": size})
        return str(msgspec.json.decode(opened)["id"])

    async def report(self, batch: str, lengths: Sequence[float]) -> None:
        """Say of a batch's rollout how long the samples are that it still generates, tokens."""
        report = {"generating": len(lengths), "lengths": lengths}
        await self._call("POST", f"/v1/batches/{batch}/progress", report)

    async def read_batch(self, batch: str) -> BenchBatch:
        """A batch as it stands."""
        return msgspec.json.decode(await self._call("GET", f"/v1/batches/{batch}", None), type=BenchBatch)

    async def nodes(self) -> list[BenchNode]:
        """What the nodes hold, as they last said."""
        return msgspec.json.decode(await self._call("GET", "/v1/nodes", None), type=BenchNodes).nodes

    async def submit_all(self, batch: str, lines: bytes, *, repeats: bool = False) -> int:
        """Submit a bulk of reward requests (NDJSON); how many were accepted, with `repeats` now or before."""
        headers = {"content-type": "application/x-ndjson"}
        async with self._http.post(f"/v1/rewards/bulk?batch={batch}", data=lines, headers=headers) as response:
            answered = await response.read()
        if response.status != 200:
            raise _refused("POST /v1/rewards/bulk", response.status, answered)
        receipt = msgspec.json.decode(answered, type=BenchReceipt)
        return receipt.accepted + (receipt.repeated if repeats else 0)

    async def text(self, path: str) -> str:
        """What a GET is answered with."""
        return (await self._call("GET", path, None)).decode()

    def follow(self, batch: str) -> AsyncIterator[bytes]:
        """The results of a batch in pieces of whole and half lines, until it has ended."""
        return self.results(batch, "?follow=true")

    async def results(self, batch: str, query: str = "") -> AsyncIterator[bytes]:
        """The results that there are now, in pieces of whole and half lines."""
        async with self._http.get(f"/v1/batches/{batch}/results{query}") as response:
            if response.status != 200:
                raise _refused("GET results", response.status, await response.read())
            async for piece in response.content.iter_any():
                yield piece

    async def call(self, method: str, path: str, body: object) -> dict[str, Any]:
        """Any call of the door, and its answer as JSON.

        Raises:
            BenchError: it was refused.
        """
        answer: dict[str, Any] = msgspec.json.decode(await self._call(method, path, body))
        return answer

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
async def client(mesh: BenchMesh, timeout_s: float | None = CALL_TIMEOUT_S) -> AsyncIterator[BenchClient]:
    """A client with as many connections as it has calls under way, each kept. `timeout_s`: of one call."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(mesh.url, connector=connector, timeout=timeout) as http:
        yield BenchClient(http)


Call = Callable[[], Awaitable[object]]
