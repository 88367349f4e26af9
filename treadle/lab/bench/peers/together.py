"""All peers at once, for a bench to play against."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from treadle.lab.bench.errors import BenchError
from treadle.lab.bench.figures import Skipped
from treadle.lab.bench.peers.process import PeerProcess, running_peer

PEERS = ("dramatiq", "ray")


@asynccontextmanager
async def running_peers(
    python: Path, redis_url: str, tell: Callable[[str], None]
) -> AsyncIterator[tuple[Mapping[str, PeerProcess], list[Skipped]]]:
    """Those peers that could be started, and why the others could not.

    Args:
        redis_url: a server of the peers' own that keeps its word as the mesh's does (appendfsync always).
    """
    environ = {"BENCH_REDIS_URL": redis_url, "RAY_USAGE_STATS_ENABLED": "0"}
    peers: dict[str, PeerProcess] = {}
    skipped: list[Skipped] = []
    async with AsyncExitStack() as stack:
        for name in PEERS:
            tell(f"starting {name}")
            try:
                peers[name] = await stack.enter_async_context(running_peer(python, name, environ))
            except BenchError as error:
                skipped.append(Skipped(name, str(error)))
        yield peers, skipped
