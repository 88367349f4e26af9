"""The client's model services: models with their engines, which the mesh keeps on GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.client.answers import ModelServiceList, ModelServiceView
from treadle.client.transport import JSON, Transport, quoted


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
