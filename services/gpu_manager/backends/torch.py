"""Backend of our own server for reward models and teachers (`services.gpu_manager.torch_server`).

Its weights stay in host memory. An eviction drops the copy on the device and writes nothing back, and a restore is one
copy. So a swap costs the bytes of the weights, divided by the bandwidth of the bus. The server rejects an eviction
while requests run, and answers requests with 409 while it is evicted.
"""

from __future__ import annotations

from typing import Final

import msgspec

from services.gpu_manager.backends.engine_server import EngineServer
from services.gpu_manager.backends.protocol import (
    Capabilities,
    EngineError,
    EngineGone,
    Footprint,
    Level,
    Residency,
    check_level,
)
from shared.runtime.units import Seconds

_STABLE: Final[dict[str, Residency]] = {"resident": "resident", "asleep1": "asleep1"}
"""Its states apart from those of a copy that is under way."""


class _State(msgspec.Struct):
    residency: str
    device_bytes: int
    """Bytes of weights on the device."""
    host_bytes: int
    failure: str = ""


class TorchBackend:
    """A server of ours. See `Backend`."""

    def __init__(self, server: EngineServer) -> None:
        self._server = server
        self.flags = Capabilities(
            levels=("asleep1",) if server.is_given else ("asleep1", "cold"),
            write_back=False,
            preserves_graphs=True,
            needs_idle=True,
            can_autowake=False,
            answers_at_work=True,
        )

    @property
    def url(self) -> str:
        return self._server.url

    async def prepare(self) -> None:
        """Start the server, or find the given one; one that sleeps is restored."""
        await self._server.start(self._wake)

    async def evict(self, level: Level) -> None:
        """Stop the server or free its device copy. The caller has drained it, else the server rejects `asleep1`."""
        check_level(self.flags, level)
        if level == "cold":
            await self.stop()
            return
        before = await self._server.measured_bytes()
        was_resident = (await self._read()).residency == "resident"
        with self._server.changing("evict asleep1"):
            await self._change("/evict", within_s=self._server.deadlines.evict_s)
            await self._confirm("asleep1")
        after = await self._server.measured_bytes()
        if was_resident and before is not None and after is not None and after >= before:
            raise EngineError(
                f"the server reports that it is evicted, but its device memory went from {before} to {after} bytes"
            )

    async def restore(self) -> None:
        """Copy the weights to the device, or start the server if it is stopped."""
        if self._server.is_running:
            await self._wake()
        else:
            await self.prepare()

    async def residency(self) -> Residency:
        if not self._server.is_running:
            return "cold"
        try:
            return _STABLE.get((await self._read()).residency, "unknown")
        except EngineError:
            return "unknown"

    async def footprint(self) -> Footprint:
        """Return the memory of its processes; of a server given by its URL, that of its weights as it reports it."""
        if not self._server.is_given:
            return await self._server.footprint()
        try:
            state = await self._read()
        except EngineError:
            return Footprint(None, None)
        return Footprint(state.device_bytes, state.host_bytes)

    async def canary(self) -> None:
        await self._server.canary()

    async def abort(self) -> None:
        """Reject its requests. The batch that is being computed ends without effect."""
        await self._change("/abort", within_s=self._server.deadlines.read_s)

    async def stop(self) -> None:
        await self._server.stop()

    async def ended(self) -> str:
        return await self._server.ended()

    async def _wake(self) -> None:
        with self._server.changing("restore"):
            await self._change("/restore", within_s=self._server.deadlines.restore_s)
            await self._confirm("resident")

    async def _confirm(self, wanted: Residency) -> None:
        """Check the state now and `settle_s` later."""
        for _ in range(2):
            state = await self._read()
            if state.residency != wanted or (state.device_bytes > 0) != (wanted == "resident"):
                raise EngineError(
                    f"the server answered 200, but is {state.residency} with {state.device_bytes} bytes on its device"
                )
            await self._server.check_alive()

    async def _change(self, target: str, *, within_s: Seconds) -> None:
        await self._server.call("POST", target, within_s=within_s)

    async def _read(self) -> _State:
        answer = await self._server.call("GET", "/state", within_s=self._server.deadlines.read_s)
        try:
            state = msgspec.convert(answer, _State)
        except msgspec.ValidationError as error:
            raise EngineError(
                f"GET /state was not answered as our server does ({error}); the backend 'torch' is for it alone"
            ) from None
        if state.failure:
            raise EngineGone(f"the server cannot compute any more: {state.failure}")
        return state
