"""Recorded calls of models: what a token record adds, and their rate. Beside calls that are not recorded."""

import io
import itertools
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp
import msgspec

from treadle.lab.bench.bench import Bench
from treadle.lab.bench.bench_engine import MODEL, OUTPUT
from treadle.lab.bench.closed_loop import Round, closed_loop, median_round
from treadle.lab.bench.contest import run_rounds
from treadle.lab.bench.figures import BenchError, BenchFigure, at_most, figure

CALLERS: Final = 64
TURN: Final = OUTPUT + 2
"""Tokens by which the prompt of the next turn is longer: the answer, and text of a tool."""
TURNS: Final = 50
"""Turns of a trajectory. Then another one is opened."""
LONG_TOKENS: Final = 100_000


class _Turns:
    """Calls of recorded trajectories, one turn after another."""

    def __init__(self, router_url: str, proxy_url: str, http: aiohttp.ClientSession, first: int) -> None:
        self._router_url = router_url
        self._proxy_url = proxy_url
        self._http = http
        self._first = first
        self._turns: list[tuple[str, int]] = []
        self._last = "", 0
        """Trajectory of the newest call, and its turns."""

    async def call(self) -> None:
        """Make the next turn of a trajectory that nobody calls now."""
        trajectory, turn = self._turns.pop() if self._turns else (await self._opened(), 0)
        text = "word" * (self._first + turn * TURN)
        body = msgspec.json.encode({"model": MODEL, "messages": [{"role": "user", "content": text}]})
        headers = {"content-type": "application/json", "x-trajectory-id": trajectory}
        data = body if len(body) < 1 << 16 else io.BytesIO(body)
        async with self._http.post(f"{self._router_url}/v1/chat/completions", data=data, headers=headers) as response:
            answer = await response.read()
        if response.status != 200 or b"token_ids" in answer:
            raise BenchError(f"{self._router_url} answered {response.status}: {answer[:300].decode(errors='replace')}")
        self._last = trajectory, turn + 1
        if turn + 1 < TURNS:
            self._turns.append((trajectory, turn + 1))

    async def _opened(self) -> str:
        async with self._http.post(f"{self._proxy_url}/v1/trajectories", json={"record": "tokens"}) as response:
            if response.status != 201:
                raise BenchError(f"no trajectory was opened: {await response.text()}")
            return str((await response.json())["id"])

    async def check(self) -> None:
        """Read one record. Nobody calls now.

        Raises:
            BenchError: it is not one row of all turns.
        """
        trajectory, turns = self._last
        async with self._http.get(f"{self._proxy_url}/v1/trajectories/{trajectory}/tokens") as response:
            rows = [msgspec.json.decode(line) for line in (await response.read()).splitlines()]
        if len(rows) != 1 or sum(rows[0]["loss_mask"]) != turns * OUTPUT:
            raise BenchError(f"the record of {trajectory} is not one row of {turns} turns")


async def recorded_calls(
    bench: Bench, router_url: str, plain_url: str, http: aiohttp.ClientSession
) -> list[BenchFigure]:
    """Measure recorded calls.

    Args:
        router_url: router before an engine that reports ids.
        plain_url: the engine itself.
    """
    figures: list[BenchFigure] = []
    for name, tokens, what in (("record", 8, "one caller"), ("record.long", LONG_TOKENS, f"{LONG_TOKENS:,} tokens")):
        turns = _Turns(router_url, bench.mesh.url, http, tokens)
        rounds = await run_rounds(
            {
                "direct": _round(_direct(plain_url, http, tokens), 1, bench.sizes.seconds),
                "recorded": _round(turns.call, 1, bench.sizes.seconds),
            },
            bench.sizes.rounds,
            bench.log,
        )
        await turns.check()
        p50_ms = {place: median_round(these).p50_s * 1e3 for place, these in rounds.items()}
        figures.append(
            figure(
                f"router.{name}.added.p50",
                f"recorded, {what}: added by router and record, p50",
                p50_ms["recorded"] - p50_ms["direct"],
                "ms",
                at_most(3.0) if name == "record" else None,
            )
        )
    many = _Turns(router_url, bench.mesh.url, http, 8)
    rounds = await run_rounds(
        {"recorded": _round(many.call, CALLERS, bench.sizes.seconds)}, bench.sizes.rounds, bench.log
    )
    await many.check()
    rate = median_round(rounds["recorded"]).rate
    return [*figures, figure("router.record.rate", f"recorded calls, {CALLERS} callers", rate, "/s")]


def _direct(url: str, http: aiohttp.ClientSession, tokens: int) -> Callable[[], Awaitable[None]]:
    lengths = itertools.cycle(range(tokens, tokens + TURN * TURNS, TURN))

    async def call() -> None:
        body = msgspec.json.encode({"model": MODEL, "messages": [{"role": "user", "content": "word" * next(lengths)}]})
        data = body if len(body) < 1 << 16 else io.BytesIO(body)
        async with http.post(f"{url}/v1/chat/completions", data=data) as response:
            await response.read()

    return call


def _round(call: Callable[[], Awaitable[None]], callers: int, seconds: float) -> Callable[[], Awaitable[Round]]:
    return lambda: closed_loop(call, callers=callers, seconds=seconds)
