"""An external service for tests: it answers as the test says, and counts and keeps its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from tests.e2e.processes import Service, running_service
from tests.e2e.replicas import Mesh, is_ready, running_mesh, until
from treadle.testing.servers import running_valkey

LOOPBACK = '["127.0.0.0/8"]'
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Upstream:
    """A running service on 127.0.0.1."""

    url: str = ""
    answer: Handler | None = None
    """Handler of all calls; None: 200 with `{}`."""
    calls: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    """Path with query, headers (lower case), body of each call."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Keep the call, and answer."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.calls.append((request.path_qs, headers, await request.read()))
        return web.json_response({}) if self.answer is None else await self.answer(request)


@asynccontextmanager
async def running_upstream() -> AsyncIterator[Upstream]:
    """Start a service in this process, and stop it at the end."""
    upstream = Upstream()
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", upstream.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield upstream
    finally:
        await runner.cleanup()


@dataclass(frozen=True, slots=True)
class CallingMesh:
    """A proxy and a quota manager on a Valkey of their own."""

    mesh: Mesh
    manager: Service
    valkey: str

    @property
    def url(self) -> str:
        """Address of the proxy."""
        return self.mesh.proxies[0].url


@contextmanager
def calling_mesh(home: Path, **environ: str) -> Iterator[CallingMesh]:
    """Entered once its parts are ready. `environ`: settings, which each service gets by their prefix."""
    settings = {
        "QUOTA_MANAGER_ALLOW_ADDRESSES": LOOPBACK,
        "QUOTA_MANAGER_NODE": "calls",
        "QUOTA_MANAGER_HEARTBEAT_S": "0.4",
        **{name: value for name, value in environ.items() if name.startswith("QUOTA_")},
    }
    others = {name: value for name, value in environ.items() if name.startswith("PROXY_")}
    settings |= {name: value for name, value in environ.items() if name.startswith("TREADLE_")}
    others |= {name: value for name, value in environ.items() if name.startswith("TREADLE_")}
    with (
        running_valkey(home) as valkey,
        running_mesh(valkey, proxies=1, managers=0, cores=0, **others) as mesh,
        running_service("quota_manager", valkey, **settings) as manager,
    ):
        asyncio.run(until(lambda: is_ready(manager)))
        yield CallingMesh(mesh, manager, valkey)
