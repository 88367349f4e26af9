"""The client's model services: models with their engines, which the mesh keeps on GPUs."""

from __future__ import annotations

from treadle.client.answers import ModelServiceList, ModelServiceView
from treadle.client.transport import Transport, quoted


class AsyncModelServices:
    """Model services of the mesh. Operators declare them at the nodes with GPUs."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def all(self) -> list[ModelServiceView]:
        """Return all model services with the states of their engines, by name. It wakes no engine."""
        return (await self._transport.call(ModelServiceList, "GET", "/v1/services")).services

    async def view(self, service: str) -> ModelServiceView:
        """Return one model service with the states of its engines. It wakes no engine.

        Raises:
            NotFound: no node has a service of this name.
        """
        return await self._transport.call(ModelServiceView, "GET", f"/v1/services/{quoted(service)}")
