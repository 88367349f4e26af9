"""What every measurement is given."""

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
    """One run: what is measured, beside whom, how much."""

    mesh: BenchMesh
    sizes: Sizes
    log: Callable[[str], None]
    """Hears of the progress, a line at a time."""
    images: tuple[str, ...] = ("local",)
    """Environments that are measured: `local`, and one of a container engine where there is one."""
    peers: Mapping[str, PeerProcess] = field(default_factory=dict)

    def meter(self) -> CpuMeter:
        """A meter over the services of our own stack and over this process; over nothing where it is not ours."""
        return CpuMeter({**self.mesh.pids, CLIENT: os.getpid()} if self.mesh.pids else {})

    def against(self, own: Contestant, *names: str) -> dict[str, Contestant]:
        """Ourselves and those of the peers ``names`` that there are."""

        def contestant(peer: PeerProcess) -> Contestant:
            return peer.meter.over(lambda: peer.round(self.sizes.callers, self.sizes.seconds))

        return {MESH: own, **{name: contestant(peer) for name, peer in self.peers.items() if name in names}}

    @asynccontextmanager
    async def warm(self, call: Callable[[BenchClient], Call], callers: int) -> AsyncIterator[Call]:
        """A call on connections that are open, to services that have done it before."""
        async with client(self.mesh) as http:
            ready = call(http)
            await closed_loop(ready, callers=callers, seconds=min(WARM_UP_S, self.sizes.seconds))
            yield ready
