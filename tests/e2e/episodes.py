"""Trajectories on a real mesh whose node may be killed: calls of the tests of episodes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.e2e.processes import Service, running_service
from tests.e2e.replicas import LEASE_S, is_ready, leads, until
from treadle.testing.servers import running_valkey, temporary_home

Json = dict[str, Any]
WAIT_S = 60
NODE = f"episodes-{os.getpid()}"
"""Distinguishes containers, so that two runs of these tests on one engine do not remove each other's."""


@dataclass
class OneNodeMesh:
    """One proxy and one manager, which can be killed and restarted under the same name."""

    proxy: Service
    redis_url: str
    environ: dict[str, str]
    managers: ExitStack = field(default_factory=ExitStack)
    manager: Service | None = None

    def start_manager(self) -> None:
        """A new incarnation of the node, which can work soon. On the main thread: a child dies with its thread."""
        node = {"CPU_MANAGER_NODE": NODE, "CPU_MANAGER_HEARTBEAT_S": "0.4", **self.environ}
        service = self.managers.enter_context(running_service("cpu_manager", self.redis_url, **node))
        self.manager = service

    async def until_ready(self) -> None:
        """Wait until the node can work."""
        assert self.manager is not None
        service = self.manager
        await until(lambda: is_ready(service))

    def kill_manager(self) -> None:
        """`kill -9`."""
        assert self.manager is not None
        self.manager.kill()

    def stop_manager(self) -> None:
        """SIGTERM, and wait for its end."""
        assert self.manager is not None
        self.manager.process.terminate()
        self.manager.process.wait(WAIT_S)


@contextmanager
def running_one_node_mesh(*, stimulus_logs: str = "", **environ: str) -> Iterator[OneNodeMesh]:
    """`stimulus_logs`: where the leader writes its log. `environ`: settings of the manager."""
    with temporary_home() as home, running_valkey(home) as url:
        settings = {"PROXY_LEASE_S": str(LEASE_S)}
        if stimulus_logs:
            settings["PROXY_STIMULUS_LOGS"] = stimulus_logs
        with running_service("proxy", url, **settings) as proxy:
            asyncio.run(until(lambda: leads(proxy)))
            mesh = OneNodeMesh(proxy, url, environ)
            with mesh.managers:
                mesh.start_manager()
                asyncio.run(mesh.until_ready())
                yield mesh


class Trainer:
    """Opens trajectories and acts in them."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self.opened: list[str] = []
        """Every trajectory so far, in order."""

    async def open(self, *, batch: str | None = None, **environment: Any) -> str:
        """A fresh trajectory."""
        body = {"environment": environment} | ({"batch": batch} if batch else {})
        async with self._http.post("/v1/trajectories", json=body) as response:
            assert response.status == 201, await response.text()
            self.opened.append(str((await response.json())["id"]))
        return self.opened[-1]

    async def act(self, trajectory: str, kind: str, params: Json, timeout_s: float = 30.0, **more: Any) -> Json:
        """One action, and its answer."""
        body = {"kind": kind, "params": params, "timeout_s": timeout_s, **more}
        async with self._http.post(f"/v1/trajectories/{trajectory}/actions?wait={WAIT_S}", json=body) as response:
            answer: Json = await response.json(content_type=None)
            assert response.status in (200, 409), answer
            return answer

    async def bash(self, trajectory: str, line: str, **more: Any) -> Json:
        """One bash line, and its answer."""
        return await self.act(trajectory, "env.bash", {"line": line}, **more)

    async def submit(self, trajectory: str, line: str, timeout_s: float = 30.0, **more: Any) -> str:
        """Submit one bash line; return the id of its action."""
        body = {"kind": "env.bash", "params": {"line": line}, "timeout_s": timeout_s, **more}
        async with self._http.post(f"/v1/trajectories/{trajectory}/actions", json=body) as response:
            assert response.status == 202, await response.text()
            return str((await response.json())["id"])

    async def state(self, action: str) -> Json:
        """State of an action, or its answer."""
        async with self._http.get(f"/v1/actions/{action}") as response:
            state: Json = await response.json()
            return state

    async def cancel(self, action: str) -> None:
        """Cancel an action."""
        async with self._http.delete(f"/v1/actions/{action}") as response:
            assert response.status < 300, await response.text()

    async def view(self, trajectory: str) -> Json:
        """Its state."""
        async with self._http.get(f"/v1/trajectories/{trajectory}") as response:
            view: Json = await response.json()
            return view

    async def close(self, trajectory: str) -> None:
        """It is over."""
        async with self._http.delete(f"/v1/trajectories/{trajectory}") as response:
            assert response.status < 300, await response.text()

    async def used(self) -> dict[str, int]:
        """Usage that the node reports."""
        async with self._http.get("/v1/nodes") as response:
            nodes = (await response.json())["nodes"]
        return dict(next(node["used"] for node in nodes if node["name"] == NODE))

    async def until_used(self, **wanted: int) -> None:
        """Wait until the node reports this usage."""
        async with asyncio.timeout(WAIT_S):
            while True:
                if wanted.items() <= (await self.used()).items():
                    return
                await asyncio.sleep(0.1)


@asynccontextmanager
async def trainer_of(mesh: OneNodeMesh) -> AsyncIterator[Trainer]:
    """A trainer at the proxy of `mesh`."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=2 * WAIT_S)
    async with aiohttp.ClientSession(mesh.proxy.url, connector=connector, timeout=timeout) as http:
        trainer = Trainer(http)
        try:
            yield trainer
        finally:  # also after a failure: the next test finds the node empty
            for trajectory in trainer.opened:
                await trainer.close(trajectory)
