"""Backend of any engine: evicted by its stop, restored by its start. Always works, and costs a load each time."""

from __future__ import annotations

from services.gpu_manager.backends.engine_server import EngineServer
from services.gpu_manager.backends.protocol import Capabilities, EngineError, Footprint, Level, Residency, check_level


class ProcessBackend:
    """An engine of which nothing is known but its command and its health. See `Backend`."""

    def __init__(self, server: EngineServer) -> None:
        self._server = server
        self.flags = Capabilities(
            levels=() if server.is_given else ("cold",),
            write_back=False,
            preserves_graphs=False,
            needs_idle=False,
            can_autowake=False,
        )

    @property
    def url(self) -> str:
        return self._server.url

    async def prepare(self) -> None:
        await self._server.start()

    async def evict(self, level: Level) -> None:
        """Stop the engine. `level` must be `cold`."""
        check_level(self.flags, level)
        await self._server.stop()

    async def restore(self) -> None:
        await self._server.start()

    async def residency(self) -> Residency:
        if not self._server.is_running:
            return "cold"
        try:
            await self._server.call("GET", self._server.settings.health, within_s=self._server.deadlines.read_s)
        except EngineError:
            return "unknown"
        return "resident"

    async def footprint(self) -> Footprint:
        return await self._server.footprint()

    async def canary(self) -> None:
        await self._server.canary()

    async def abort(self) -> None:
        """Do nothing: engines have no common route for it. They end a request when its connection is closed."""

    async def stop(self) -> None:
        await self._server.stop()

    async def ended(self) -> str:
        return await self._server.ended()
