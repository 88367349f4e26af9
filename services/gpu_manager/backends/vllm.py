"""Backend of vLLM: sleep levels 1 and 2, with restores in the exact order (facts A2, read in vLLM 0.33).

Laws:
  - parameters of `/sleep` and `/wake_up` are in the query; vLLM ignores a body without an error;
  - `/health` stays 200 while the engine sleeps, so only `/is_sleeping` decides; no read wakes the engine;
  - a level is entered from `resident` only: a second `/sleep` does nothing but changes the gauge;
  - weights that may have been dropped are loaded again before requests run, else vLLM answers garbage with 200.

vLLM needs the flag `--enable-sleep-mode` and `VLLM_SERVER_DEV_MODE=1`. The latter opens routes that run code, so
its port must not be reachable from outside of the node.
"""

from __future__ import annotations

import re
from typing import Any, Final

from services.gpu_manager.backends.engine_http import json_of, refused
from services.gpu_manager.backends.engine_server import EngineServer
from services.gpu_manager.backends.protocol import (
    Capabilities,
    EngineError,
    EngineGone,
    Footprint,
    Level,
    Residency,
    check_level,
)
from shared.runtime.units import Seconds

_NUMBERS: Final[dict[Level, int]] = {"asleep1": 1, "asleep2": 2}
_GAUGE: Final = re.compile(r'^vllm:engine_sleep_state\{[^}]*sleep_state="(\w+)"[^}]*\} 1(?:\.0)?\s*$', re.MULTILINE)
_GAUGE_LEVELS: Final[dict[str, Level]] = {"weights_offloaded": "asleep1", "discard_all": "asleep2"}
_NO_ROUTE: Final = frozenset({404, 405})


class VllmBackend:
    """A vLLM server. See `Backend`."""

    def __init__(self, server: EngineServer) -> None:
        self._server = server
        self.flags = Capabilities(
            levels=("asleep1", "asleep2") if server.is_given else ("asleep1", "asleep2", "cold"),
            write_back=True,
            preserves_graphs=True,
            needs_idle=True,
            can_autowake=False,
            answers_at_work=True,
        )
        self._level: Level | None = None
        """Level that this backend has confirmed. None: awake, or entered by someone else."""
        self._is_between = False
        """An evict or restore has begun and has not been confirmed."""

    @property
    def url(self) -> str:
        return self._server.url

    async def prepare(self) -> None:
        """Start the engine, or find the given one; a given one that sleeps is restored."""
        if not self._server.is_running:
            self._level, self._is_between = None, False
        await self._server.start(self._wake_if_asleep)

    async def evict(self, level: Level) -> None:
        """Stop the engine or put it to sleep. The caller has drained it.

        vLLM dies in a sleep while requests are decoded, and yet answers 200 (vllm#45520). So the state is read twice
        afterwards.
        """
        check_level(self.flags, level)
        if level == "cold":
            await self.stop()
            return
        found = await self._state()
        if found == level:
            return
        if found != "resident":
            raise EngineError(f"the engine is {found}; restore it before it is evicted to {level}")
        with self._server.changing(f"evict {level}"):
            await self._sleep(level)

    async def _sleep(self, level: Level) -> None:
        self._is_between, self._level = True, None
        number = _NUMBERS[level]
        answer = await self._server.call(
            "POST", f"/sleep?level={number}&mode=abort", within_s=self._server.deadlines.evict_s
        )
        if (entered := _field(answer, "level")) not in (None, number):
            raise EngineError(f"vLLM entered sleep level {entered}, not {number}")
        await self._confirm(sleeping=True, within_s=self._server.deadlines.evict_s)
        if (shown := await self._gauge_level()) not in (None, level):
            raise EngineError(f"vLLM's metrics show {shown} after a sleep at level {number}")
        self._is_between, self._level = False, level

    async def restore(self) -> None:
        """Wake the engine, or start it if it is stopped."""
        if not self._server.is_running:
            await self.prepare()
        else:
            await self._wake_if_asleep()

    async def residency(self) -> Residency:
        if not self._server.is_running:
            return "cold"
        try:
            return await self._state()
        except EngineError:
            return "unknown"

    async def footprint(self) -> Footprint:
        return await self._server.footprint()

    async def canary(self) -> None:
        """Send the canary, unless the engine sleeps: vLLM would queue it until the engine wakes."""
        if await self._is_sleeping():
            raise EngineError("the engine sleeps, so it answers no canary; restore it first")
        await self._server.canary()

    async def abort(self) -> None:
        """End all running requests. Without the route for it, the sleep's `mode=abort` does."""
        body: dict[str, list[str]] = {"request_ids": []}  # empty: all
        reply = await self._server.send("POST", "/abort_requests", body, within_s=self._server.deadlines.read_s)
        if reply.status != 200 and reply.status not in _NO_ROUTE:
            raise refused("POST /abort_requests", reply)

    async def stop(self) -> None:
        await self._server.stop()
        self._level, self._is_between = None, False

    async def ended(self) -> str:
        return await self._server.ended()

    # ---- parts -----------------------------------------------------------------------------------------------------

    async def _state(self) -> Residency:
        """Return the state by `/is_sleeping`; its level by what this backend did, else by the gauge."""
        if not await self._is_sleeping():
            self._level = None  # a level that is entered later is not this one
            return "resident"
        if self._is_between:  # parts of it may be awake
            return "unknown"
        return self._level or await self._gauge_level() or "unknown"

    async def _wake_if_asleep(self) -> None:
        if await self._is_sleeping():
            with self._server.changing("restore"):
                await self._wake()

    async def _wake(self) -> None:
        """Wake the engine. If its level is unknown, as from level 2: weights that are there are loaded again."""
        level = self._level or (None if self._is_between else await self._gauge_level())
        self._is_between = True
        within_s = self._server.deadlines.restore_s
        if level == "asleep1":
            await self._wake_up("", within_s)
        else:
            await self._server.call("POST", "/wake_up?tags=weights", within_s=within_s)  # "sleeping" is right here
            await self._server.call("POST", "/collective_rpc", {"method": "reload_weights"}, within_s=within_s)
            await self._wake_up("?tags=kv_cache", within_s)
            await self._server.poll(
                self._prefix_cache_is_reset, within_s=within_s, failure="vLLM did not reset its prefix cache"
            )
        await self._confirm(sleeping=False, within_s=within_s)
        self._is_between, self._level = False, None

    async def _wake_up(self, query: str, within_s: Seconds) -> None:
        """Wake what still sleeps. A tag that vLLM does not know, or that is awake, makes the call a no-op with 200."""
        answer = await self._server.call("POST", f"/wake_up{query}", within_s=within_s)
        if (status := _field(answer, "status")) not in (None, "awake"):
            raise EngineError(f"POST /wake_up{query} was answered with the status {status!r}: the engine is not awake")

    async def _prefix_cache_is_reset(self) -> bool:
        answer = await self._server.call("POST", "/reset_prefix_cache", within_s=self._server.deadlines.read_s)
        return _field(answer, "success") is not False  # older versions answer with an empty body

    async def _confirm(self, *, sleeping: bool, within_s: Seconds) -> None:
        """Wait until the engine reports the state. If it sleeps, check that it still does `settle_s` later."""
        wanted = "asleep" if sleeping else "awake"

        async def is_so() -> bool:
            return await self._is_sleeping() == sleeping

        await self._server.poll(
            is_so, within_s=within_s, failure=f"vLLM answered 200, but was not {wanted} after {within_s:g} s"
        )
        if not sleeping:
            return  # the canary that follows shows whether it lives
        await self._server.check_alive()
        health = await self._server.send("GET", "/health", within_s=self._server.deadlines.read_s)
        if health.status == 503:  # it says nothing about sleep, but reports a dead engine core
            raise EngineGone("vLLM's engine core died in the change of its state (GET /health: 503)")
        if not await is_so():
            raise EngineError("vLLM was asleep, and is not any more: something else has woken it")

    async def _is_sleeping(self) -> bool:
        reply = await self._server.send("GET", "/is_sleeping", within_s=self._server.deadlines.read_s)
        if reply.status in _NO_ROUTE:
            raise EngineError(
                "vLLM has no /is_sleeping: start it with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1, "
                'or declare it with "backend": "process"'
            )
        if reply.status != 200:
            raise refused("GET /is_sleeping", reply)
        found = _field(json_of(reply), "is_sleeping")
        if not isinstance(found, bool):
            raise refused("GET /is_sleeping", reply)
        return found

    async def _gauge_level(self) -> Level | None:
        """Return the level by the metrics; None if there is no gauge, or engines of one server differ."""
        reply = await self._server.send("GET", "/metrics", within_s=self._server.deadlines.read_s)
        if reply.status != 200:
            return None
        states = set(_GAUGE.findall(reply.body.decode(errors="replace")))
        return _GAUGE_LEVELS.get(states.pop()) if len(states) == 1 else None


def _field(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, dict) else None
