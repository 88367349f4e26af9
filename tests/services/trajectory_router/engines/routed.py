"""A router as a process, and real engines behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.request import Request, urlopen

import msgspec

from tests.e2e.processes import Service, answers, running_service
from treadle.testing.servers import running_valkey, temporary_home

LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class RoutedEngines:
    """The router's process and its routes for operators."""

    service: Service

    @property
    def url(self) -> str:
        """Address of the router."""
        return self.service.url

    def register(self, url: str) -> str:
        """Register an engine, or register it again. Return its id."""
        return str(self._read("/workers", {"url": url})["worker_id"])

    def workers(self) -> dict[str, dict[str, Any]]:
        """Return all engines by their id."""
        return {worker["id"]: worker for worker in self._read("/workers")["workers"]}

    def ready(self) -> bool:
        """Return whether it admits calls."""
        return answers(self.url + "/readyz")

    def _read(self, path: str, body: object = None) -> Any:
        data = None if body is None else msgspec.json.encode(body)
        request = Request(self.url + path, data=data, headers={"content-type": "application/json"})
        with urlopen(request, timeout=LIMIT_S) as response:
            return msgspec.json.decode(response.read())


@contextmanager
def running_routed(*urls: str, **environ: str) -> Iterator[RoutedEngines]:
    """Run a router over engines, on a Valkey of its own. `environ`: its settings."""
    with (
        temporary_home() as home,
        running_valkey(home, durable=False) as redis_url,
        running_service("trajectory_router", redis_url, **environ) as service,
    ):
        routed = RoutedEngines(service)
        for url in urls:
            routed.register(url)
        yield routed
