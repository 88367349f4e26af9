"""Leases of quotas: the cost of an acquire, the use of an upstream's limit, tenants' shares, and killed callers."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Final

import aiohttp
import msgspec
from aiohttp import web
from redis.asyncio import Redis

from treadle.lab.bench.actions import NOOP
from treadle.lab.bench.bench import Bench
from treadle.lab.bench.closed_loop import Round, closed_loop, median_round, percentile
from treadle.lab.bench.figures import BenchFigure, at_least, at_most, figure
from treadle.lab.bench.killed_callers import killed_callers, serving
from treadle.lab.bench.light_http import LightHttp
from treadle.lab.bench.machine_gaps import machine_gaps
from treadle.lab.bench.mesh import BenchMesh, client

CALLERS: Final = 200
LEAST_RATE: Final = 2000.0
"""Acquires a second that two cores have to serve."""
QUIET_RATE, HALF_RATE = 300.0, LEAST_RATE / 2
"""Rates at which latencies are measured: a mesh that is not near its saturation, and half of the required rate."""
LOAD: Final = 0.5
"""Share of the saturated rate at which latencies are measured too."""
STALL_MS: Final = 10
"""Duration from which Valkey records an fsync."""
MARGIN_MS: Final = 5.0
"""Most that an acquire may take beyond `one.p99`."""
UPSTREAM_RATE: Final = 200.0
"""Calls a second that the upstream server accepts."""
UPSTREAM_BURST: Final = 40.0
QUOTA_BURST: Final = 20.0
"""Less than the upstream's: the calls of one grant do not arrive in its order."""
WEIGHTS: Final = {"bench-a": 1.0, "bench-b": 2.0, "bench-c": 5.0}
AMPLE: Final = 1e9
QUOTA: Final = "bench"
PEERS: Final = ("throttled", "litellm")


class _Granted(msgspec.Struct, frozen=True):
    lease: str
    fence: int


_granted = msgspec.json.Decoder(_Granted).decode


class LeaseClient:
    """Acquires and releases over HTTP. Checks every answer."""

    def __init__(self, http: LightHttp) -> None:
        self._http = http
        self._body = msgspec.json.encode({"quotas": {QUOTA: 1}, "wait_s": 60, "ttl_s": 60})

    async def acquire(self) -> _Granted:
        """Return a granted lease.

        Raises:
            BenchError: it was refused.
        """
        return _granted(await self._http.post("/v1/acquire", self._body))

    async def release(self, lease: _Granted) -> None:
        """Release it."""
        await self._http.post(f"/v1/leases/{lease.lease}/release", b'{"fence":%d}' % lease.fence)


@asynccontextmanager
async def _lease_client(mesh: BenchMesh, tenant: str | None = None) -> AsyncIterator[LeaseClient]:
    async with LightHttp.to(mesh.url, {"treadle-tenant": tenant} if tenant else None) as http:
        yield LeaseClient(http)


async def quota_leases(bench: Bench) -> list[BenchFigure]:
    """Measure acquires at saturation and below it, then the use of an upstream's limit and tenants' shares."""
    async with client(bench.mesh) as http:
        try:
            figures = [*await _cost(bench), *await _use(bench), *await _shares(bench)]
            figures += await killed_callers(bench, QUOTA)
        finally:
            await http.call_empty("DELETE", f"/v1/quotas/{QUOTA}")
    return figures + await _peers(bench)


# ---- cost ------------------------------------------------------------------------------------------------------------


async def _cost(bench: Bench) -> list[BenchFigure]:
    sizes = bench.sizes
    await _limit(bench, {"concurrency": AMPLE, "rates": [{"limit": AMPLE, "period_s": 1}]})
    async with _lease_client(bench.mesh) as leases, client(bench.mesh) as http:
        await closed_loop(lambda: http.act(NOOP), callers=1, seconds=0.5)
        one = await closed_loop(lambda: http.act(NOOP), callers=1, seconds=sizes.seconds)

        async def pair() -> None:
            await leases.release(await leases.acquire())

        await closed_loop(pair, callers=CALLERS, seconds=1.0)
        meter = bench.meter()
        loaded = meter.over(lambda: closed_loop(pair, callers=CALLERS, seconds=sizes.seconds))
        full = median_round([await loaded() for _ in range(sizes.rounds)])
        bench.log(f"  {full.rate:,.0f} acquires/s at saturation")
        bound = at_most(one.p99_s * 1e3 + MARGIN_MS, f"one action, one caller: p99 {one.p99_s * 1e3:.1f} ms")
        loads = [(QUIET_RATE, "quiet", bound), (HALF_RATE, "half", bound), (full.rate * LOAD, "loaded", bound)]
        latencies = await machine_gaps("quota.machine", sizes.seconds)
        await _record_stalls(bench.mesh)
        for rate, name, target in loads:
            rounds = [await _paced(leases, rate, sizes.seconds) for _ in range(sizes.rounds)]
            what = f"acquire, {CALLERS} callers at {rate:,.0f}/s"
            p50_ms, p99_ms = (sorted(one.percentile_ms(percent) for one in rounds) for percent in (50, 99))
            latencies += [
                figure(f"quota.acquire.{name}.p50", f"{what}, p50", median(p50_ms), "ms"),
                figure(f"quota.acquire.{name}.p99", f"{what}, p99", median(p99_ms), "ms", target),
                figure(f"quota.acquire.{name}.p99.worst", f"{what}, the largest p99", p99_ms[-1], "ms"),
            ]
        latencies += await _stalls(bench.mesh)
    return [
        *meter.figures("quota.acquire", "CPU an acquire and its release cost {}"),
        figure("quota.acquire.rate", f"acquire and release, {CALLERS} callers", full.rate, "/s", at_least(LEAST_RATE)),
        *latencies,
    ]


async def _record_stalls(mesh: BenchMesh) -> None:
    """Let the store of our own stack record long fsyncs from now on."""
    if mesh.redis_url is not None:
        async with Redis.from_url(mesh.redis_url) as redis:
            await redis.config_set("latency-monitor-threshold", STALL_MS)
            await redis.latency_reset()


async def _stalls(mesh: BenchMesh) -> list[BenchFigure]:
    """Return the long fsyncs of the store since then: each kept all callers waiting."""
    if mesh.redis_url is None:
        return []
    async with Redis.from_url(mesh.redis_url) as redis:
        recorded = await redis.latency_history("aof-fsync-always")
    took_ms = [ms for _, ms in recorded]
    what = f"seconds in which an fsync of the store took {STALL_MS} ms or more meanwhile"
    return [
        figure("quota.acquire.stalls", what, len(took_ms), "s"),
        figure("quota.acquire.stalls.longest", "the longest of them", max(took_ms, default=0), "ms"),
    ]


@dataclass
class _Latencies:
    """Seconds of acquires."""

    took: list[float] = field(default_factory=list)

    def paced(self, leases: LeaseClient, pause_s: float) -> Callable[[], Awaitable[None]]:
        """Return a call that acquires once in `pause_s` on average. Jittered, so that callers do not stay in step."""
        rng = random.Random(1)

        async def call() -> None:
            began = perf_counter()
            lease = await leases.acquire()
            self.took.append(perf_counter() - began)
            await leases.release(lease)
            rest_s = pause_s * rng.uniform(0.5, 1.5) - (perf_counter() - began)
            await asyncio.sleep(max(0.0, rest_s))

        return call

    def percentile_ms(self, percent: float) -> float:
        return percentile(sorted(self.took), percent) * 1e3


async def _paced(leases: LeaseClient, rate: float, seconds: float) -> _Latencies:
    """Let all callers acquire `rate` times a second together."""
    took, pause_s = _Latencies(), CALLERS / rate
    await closed_loop(took.paced(leases, pause_s), callers=CALLERS, seconds=seconds, spread_s=pause_s)
    return took


# ---- use of an upstream ----------------------------------------------------------------------------------------------


class TokenBucket:
    """A server that accepts `UPSTREAM_RATE` calls a second, and rejects others with 429."""

    def __init__(self) -> None:
        self.accepted = self.rejected = 0
        self._tokens, self._at = UPSTREAM_BURST, perf_counter()

    async def answer(self, _: web.Request) -> web.Response:
        now = perf_counter()
        self._tokens = min(UPSTREAM_BURST, self._tokens + (now - self._at) * UPSTREAM_RATE)
        self._at = now
        if self._tokens < 1:
            self.rejected += 1
            return web.Response(status=429)
        self._tokens -= 1
        self.accepted += 1
        return web.Response()


async def _use(bench: Bench) -> list[BenchFigure]:
    """Call an upstream with a rate under leases, as fast as they are granted."""
    await _limit(bench, {"rates": [{"limit": UPSTREAM_RATE, "period_s": 1, "burst": QUOTA_BURST}]})
    upstream, seconds = TokenBucket(), bench.sizes.seconds * 2
    async with _lease_client(bench.mesh) as leases, serving(upstream.answer) as url, aiohttp.ClientSession(url) as http:

        async def call() -> None:
            lease = await leases.acquire()
            async with http.get("/"):
                pass
            await leases.release(lease)

        await closed_loop(call, callers=CALLERS, seconds=1.0)  # spends the burst
        accepted, rejected, began = upstream.accepted, upstream.rejected, perf_counter()
        running = asyncio.create_task(closed_loop(call, callers=CALLERS, seconds=seconds))
        await asyncio.sleep(seconds)
        elapsed_s, accepted = perf_counter() - began, upstream.accepted - accepted
        rejected = upstream.rejected - rejected
        await running
    share = accepted / (elapsed_s * UPSTREAM_RATE) * 100
    return [
        figure("quota.use", f"used of an upstream's {UPSTREAM_RATE:g} calls/s", share, "%", at_least(98.0)),
        figure("quota.rejected", "calls that the upstream rejected meanwhile", rejected, "", at_most(0)),
    ]


# ---- shares ----------------------------------------------------------------------------------------------------------


async def _shares(bench: Bench) -> list[BenchFigure]:
    """Let three tenants want more than there is; compare what each gets with its weight."""
    await _limit(bench, {"rates": [{"limit": UPSTREAM_RATE, "period_s": 1, "burst": 1}], "weights": WEIGHTS})
    counts: Counter[str] = Counter()
    seconds = bench.sizes.seconds * 2
    async with AsyncExitStack() as stack:
        rounds = []
        for tenant in WEIGHTS:
            leases = await stack.enter_async_context(_lease_client(bench.mesh, tenant))
            rounds.append(closed_loop(_counting(leases, counts, tenant), callers=CALLERS // 2, seconds=seconds + 2.0))
        running = asyncio.gather(*rounds)
        await asyncio.sleep(2.0)  # everybody waits
        before = counts.copy()
        await asyncio.sleep(seconds)
        got = counts - before
        await running
    total, weights = sum(got.values()), sum(WEIGHTS.values())
    worst = max(abs(got[tenant] / total / (weight / weights) - 1) for tenant, weight in WEIGHTS.items())
    what = "largest deviation of a tenant's share from its weight (1 : 2 : 5)"
    return [figure("quota.shares", what, worst * 100, "%", at_most(3.0))]


def _counting(leases: LeaseClient, counts: Counter[str], tenant: str) -> Callable[[], Awaitable[None]]:
    async def call() -> None:
        lease = await leases.acquire()
        counts[tenant] += 1
        await leases.release(lease)

    return call


async def _limit(bench: Bench, limits: object) -> None:
    async with client(bench.mesh) as http:
        await http.call("PUT", f"/v1/quotas/{QUOTA}", limits)


async def _peers(bench: Bench) -> list[BenchFigure]:
    """Measure the limiters of others, each by the calls of one process to its own store. throttled-py holds nothing, so
    it has no release.
    """
    figures: list[BenchFigure] = []
    for name, peer in bench.peers.items():
        if name in PEERS:
            rounds: list[Round] = [await peer.round(CALLERS, bench.sizes.seconds) for _ in range(bench.sizes.rounds)]
            rate = median_round(rounds).rate
            figures.append(figure(f"quota.{name}.rate", f"{name}: limiter calls, {CALLERS} callers", rate, "/s"))
    return figures
