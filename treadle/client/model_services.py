"""The client's model services: models with their engines, which the mesh keeps on GPUs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from treadle.client.answers import ModelServiceList, ModelServiceView
from treadle.client.errors import DeadlineMissed
from treadle.client.transport import JSON, Transport, quoted

POLL_S: Final = 0.5
"""Seconds between two readings of a service that is awaited."""


class AsyncModelServices:
    """Model services of the mesh. Operators declare them in files of nodes with GPUs, and callers refer to these."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def all(self) -> list[ModelServiceView]:
        """Return all model services with the states of their engines, by name. It wakes no engine."""
        return (await self.overview()).services

    async def overview(self) -> ModelServiceList:
        """Return all model services, and the GPUs of all nodes. It wakes no engine."""
        return await self._transport.call(ModelServiceList, "GET", "/v1/services")

    async def view(self, service: str) -> ModelServiceView:
        """Return one model service with the states of its engines. It wakes no engine.

        Raises:
            NotFound: no node has a service of this name.
        """
        return await self._transport.call(ModelServiceView, "GET", f"/v1/services/{quoted(service)}")

    async def address(self, service: str, *, within_s: float = 60.0) -> str:
        """Return the base address of a resident engine under a lease; wait until there is one.

        Read it again at the end of its lease (`view`), and after a call that failed: the service may have moved.

        Raises:
            NotFound: no node has a service of this name.
            DeadlineMissed: no engine was resident in time, or its node publishes no addresses.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while True:
            engines = (await self.view(service)).engines
            leased = [one for one in engines if one.address and (one.lease_until or 0.0) > time.time()]
            if leased:
                return min(leased, key=lambda one: one.running).address
            if loop.time() + POLL_S > deadline:
                why = "or its node publishes no addresses (GPU_MANAGER_PUBLISH_ADDRESSES)"
                raise DeadlineMissed(f"no engine of {service} was resident within {within_s:g} s, {why}")
            await asyncio.sleep(POLL_S)

    async def set(self, service: str, declaration: Mapping[str, Any]) -> ModelServiceView:
        """Declare a model service, or change it. Idempotent; nodes apply it at their next heartbeat (`pending`).

        Args:
            service: its name, as in `service` of actions.
            declaration: {"entry": "judge-a", "concurrency": 8}, or a whole entry as in the file of a GPU manager.
        Raises:
            Forbidden: it is a whole entry, and no GPU manager allows commands over REST.
            Conflict: the name is that of another entry of a file.
            BadRequest: it cannot be used, or there are too many services.
        """
        return await self._transport.call(ModelServiceView, "PUT", f"/v1/services/{quoted(service)}", declaration)

    async def delete(self, service: str) -> None:
        """Remove a declaration. Idempotent; its engines are drained and stopped.

        Raises:
            Conflict: it is an entry of the file of a GPU manager.
        """
        await self._transport.send("DELETE", f"/v1/services/{quoted(service)}", None, JSON)
