"""Context of every measurement."""

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from treadle.lab.bench.closed_loop import closed_loop
from treadle.lab.bench.contest import Contestant
from treadle.lab.bench.cpu_meter import CpuMeter
from treadle.lab.bench.mesh import BenchClient, BenchMesh, Call, client
from treadle.lab.bench.peers.process import PeerProcess
from treadle.lab.bench.processes import CLIENT
from treadle.lab.bench.sizes import Sizes

MESH = "treadle"
WARM_UP_S = 0.5


@dataclass(frozen=True, slots=True)
class Bench:
    """One run of the bench: mesh, sizes and peers."""

    mesh: BenchMesh
    sizes: Sizes
    log: Callable[[str], None]
    """Receives the progress, line by line."""
    images: tuple[str, ...] = ("local",)
    """Images of the measured environments: `local`, and one of the container engine if there is one."""
    peers: Mapping[str, PeerProcess] = field(default_factory=dict)

    def meter(self) -> CpuMeter:
        """Return a meter over the services of our own stack and this process; over nothing for a foreign mesh."""
        return CpuMeter({**self.mesh.pids, CLIENT: os.getpid()} if self.mesh.pids else {})

    def against(self, own: Contestant, *names: str) -> dict[str, Contestant]:
        """Return our contestant and the present peers among ``names``."""

        def contestant(peer: PeerProcess) -> Contestant:
            return peer.meter.over(lambda: peer.round(self.sizes.callers, self.sizes.seconds))

        return {MESH: own, **{name: contestant(peer) for name, peer in self.peers.items() if name in names}}

    @asynccontextmanager
    async def warm(self, call: Callable[[BenchClient], Call], callers: int) -> AsyncIterator[Call]:
        """Yield a call on open connections, after a warm-up."""
        async with client(self.mesh) as http:
            ready = call(http)
            await closed_loop(ready, callers=callers, seconds=min(WARM_UP_S, self.sizes.seconds))
            yield ready
