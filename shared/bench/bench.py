"""What every measurement is given."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from shared.bench.closed_loop import Round, closed_loop
from shared.bench.contest import Contestant
from shared.bench.figures import Figure, figure
from shared.bench.mesh import Call, Client, Mesh, client
from shared.bench.peers.process import PeerProcess
from shared.bench.processes import cpu_by_service, used_between
from shared.bench.sizes import Sizes

MESH = "treadle"
WARM_UP_S = 0.5


@dataclass(frozen=True, slots=True)
class Bench:
    """One run: what is measured, beside whom, how much."""

    mesh: Mesh
    sizes: Sizes
    tell: Callable[[str], None]
    """Hears of the progress, a line at a time."""
    peers: Mapping[str, PeerProcess] = field(default_factory=dict)

    def against(self, own: Contestant, *names: str) -> dict[str, Contestant]:
        """Ourselves and those of the peers ``names`` that there are."""

        def contestant(peer: PeerProcess) -> Contestant:
            return lambda: peer.round(self.sizes.callers, self.sizes.seconds)

        return {MESH: own, **{name: contestant(peer) for name, peer in self.peers.items() if name in names}}

    @asynccontextmanager
    async def warm(self, call: Callable[[Client], Call], callers: int) -> AsyncIterator[Call]:
        """A call on connections that are open, to services that have done it before."""
        async with client(self.mesh) as http:
            ready = call(http)
            await closed_loop(ready, callers=callers, seconds=min(WARM_UP_S, self.sizes.seconds))
            yield ready


class CpuMeter:
    """CPU time of each service while its blocks are entered, summed over them."""

    def __init__(self, mesh: Mesh) -> None:
        self._pids = mesh.pids
        self._used: dict[str, float] = dict.fromkeys(mesh.pids, 0.0)
        self._calls = 0

    async def over(self, contestant: Contestant) -> Round:
        """Play a round and count what it cost."""
        before = cpu_by_service(self._pids)
        played = await contestant()
        for name, used in used_between(before, cpu_by_service(self._pids)).items():
            self._used[name] += used
        self._calls += played.calls
        return played

    def figures(self, measurement: str, most: int = 4) -> list[Figure]:
        """Microseconds of CPU an action costs each service: the ``most`` that cost most. None where pids are unknown.

        They hardly move when others use the machine, where rates do.
        """
        dearest = sorted(self._used.items(), key=lambda item: -item[1])[:most]
        return [
            figure(f"{measurement}.cpu.{name}", f"CPU an action costs {name}", used / self._calls * 1e6, "us")
            for name, used in dearest
            if self._calls
        ]
