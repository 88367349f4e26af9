"""A mesh of several processes of each kind, controlled by a test."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.e2e.processes import Service, running_service
from treadle.testing.servers import running_valkey, temporary_home

LEASE_S = 2.0
NODE_LOST_S = 2.0
TIMEOUT_S = 60.0
_SAMPLE = re.compile(r"^(\w+)(?:\{[^}]*\})? ([0-9.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mesh:
    """Proxy replicas and CPU managers on one Valkey. `proxies[0]` was there first: it leads."""

    proxies: list[Service]
    managers: list[Service]


@contextmanager
def running_mesh(redis_url: str, *, proxies: int, managers: int, cores: int = 0, **environ: str) -> Iterator[Mesh]:
    """Entered once the first proxy leads and every manager has found it. The lease and `node_lost_s` are short.

    `environ`: further settings of the proxies.
    """
    settings = {"PROXY_LEASE_S": str(LEASE_S), "PROXY_NODE_LOST_S": str(NODE_LOST_S), **environ}
    with ExitStack() as entered:
        mesh = Mesh([], [])
        for _ in range(proxies):
            mesh.proxies.append(entered.enter_context(running_service("proxy", redis_url, **settings)))
            if len(mesh.proxies) == 1:
                asyncio.run(until(lambda: leads(mesh.proxies[0])))
        for number in range(managers):
            node = {
                "CPU_MANAGER_NODE": f"node-{number}",
                "CPU_MANAGER_CORES": str(cores),
                "CPU_MANAGER_HEARTBEAT_S": "0.4",
            }
            mesh.managers.append(entered.enter_context(running_service("cpu_manager", redis_url, **node)))
        asyncio.run(until(lambda: all(is_ready(service) for service in (*mesh.proxies, *mesh.managers))))
        yield mesh


@contextmanager
def one_core_mesh() -> Iterator[Mesh]:
    """One proxy and one manager with one core, on a Valkey of their own."""
    with (
        temporary_home() as home,
        running_valkey(home) as url,
        running_mesh(url, proxies=1, managers=1, cores=1) as running,
    ):
        yield running


def metric(service: Service, name: str) -> float:
    """A metric's value, summed over its labels; 0 while there is none."""
    with urllib.request.urlopen(service.url + "/metrics", timeout=10) as response:
        found = _SAMPLE.findall(response.read().decode())
    return sum(float(value) for each, value in found if each == name)


def epoch(proxy: Service) -> int:
    """Epoch of the term this replica leads; 0 while it does not."""
    return round(metric(proxy, "treadle_proxy_leader_epoch"))


def leads(proxy: Service) -> bool:
    """Return whether this replica dispatches."""
    return epoch(proxy) > 0


def is_ready(service: Service) -> bool:
    """Can it do its work?"""
    try:
        with urllib.request.urlopen(service.url + "/readyz", timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def executions(mesh: Mesh) -> int:
    """Attempts that have ended on the mesh's managers."""
    return round(sum(metric(manager, "treadle_cpu_manager_attempts_total") for manager in mesh.managers))


async def until(true: Callable[[], bool]) -> None:
    """Wait until a condition holds. The blocking check runs off the loop.

    Raises:
        TimeoutError: it did not, in a minute.
    """
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if await asyncio.to_thread(true):
                return
            await asyncio.sleep(0.05)
