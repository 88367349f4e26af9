"""A server with vLLM's control routes and no model. It misbehaves as vLLM 0.33 does (facts A2), and by its switches.

In the event loop of a test: `async with running_vllm(Switches(...)) as engine`. As a process:
`python vllm_server.py --port 8000 --switches '{"wake_ooms": 1}'`. So it imports nothing of this repository.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

LOADED, HOST, DROPPED = "loaded", "host", "dropped"
"""Places of the weights."""
GARBAGE = "!!!!"


@dataclass
class Switches:
    """Deviations from a good server."""

    sleep_has_no_effect: bool = False
    """`/sleep` answers 200 and does nothing."""
    wake_has_no_effect: bool = False
    wakes_partially: bool = False
    """`/wake_up` without tags wakes the weights only."""
    wake_ooms: int = 0
    """Calls of `/wake_up` that run out of memory."""
    reload_fails: bool = False
    ignores_level: bool = False
    """`/sleep` always enters level 1, as a server whose proxy drops the query."""
    dev_mode: bool = True
    """False: none of the control routes exists."""
    gauge: bool = True
    aborts: bool = True
    """Whether `/abort_requests` exists."""
    old_answers: bool = False
    """Control calls answer 200 with an empty body, as before 0.12."""
    prefix_resets_fail: int = 0
    """Calls of `/reset_prefix_cache` that find blocks in use."""
    is_deaf: bool = False
    """`/is_sleeping` is never answered."""
    start_s: float = 0.0
    """Time for which `/health` answers 503."""


@dataclass
class VllmServer:
    """State of the server."""

    switches: Switches
    crash: Callable[[], None] = lambda: None
    url: str = ""
    asleep: set[str] = field(default_factory=set)
    """Sleeping tags of `weights` and `kv_cache`."""
    paused: bool = False
    """The scheduler does not run requests."""
    weights: str = LOADED
    gauge: str = "awake"
    core_is_dead: bool = False
    running: int = 0
    """Requests that are decoded now."""
    waiting: int = 0
    """Requests that wait for the scheduler."""
    calls: list[str] = field(default_factory=list)
    """Method, path and query of the calls."""
    bodies: list[Any] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    aborted: int = 0

    # ---- control routes --------------------------------------------------------------------------------------------

    async def sleep(self, request: web.Request) -> web.Response:
        raw = request.query.get("level", "1")
        if not raw.isdecimal() or int(raw) > 2:
            return web.json_response({"detail": "Input should be less than or equal to 2"}, status=422)
        if request.query.get("mode", "abort") not in ("abort", "wait", "keep"):
            return web.json_response({"detail": "Input should be 'abort', 'wait' or 'keep'"}, status=422)
        level = 1 if self.switches.ignores_level else int(raw)
        if not self.switches.sleep_has_no_effect:
            if level >= 1 and self.running:
                self._die_soon()
            await self._sleep(level)
        return self._answer({"status": "sleeping", "level": level})

    async def _sleep(self, level: int) -> None:
        self.paused = True
        if level >= 1 and "weights" not in self.asleep:  # a second sleep only changes the gauge
            self.asleep |= {"weights", "kv_cache"}
            self.weights = HOST if level == 1 else DROPPED
        self.gauge = {0: "none", 1: "weights_offloaded", 2: "discard_all"}[level]

    def _die_soon(self) -> None:
        """The engine core dies of an illegal access a moment after the answer."""
        self.core_is_dead = True
        asyncio.get_running_loop().call_later(0.02, self.crash)

    async def wake_up(self, request: web.Request) -> web.Response:
        tags = request.query.getall("tags", [])
        if self.switches.wake_ooms > 0:
            self.switches.wake_ooms -= 1
            message = "CUDA Error: out of memory at csrc/cumem_allocator.cpp:62"
            return web.json_response({"error": {"message": message, "type": "InternalServerError"}}, status=500)
        if not self.switches.wake_has_no_effect:
            await self._wake(tags or (["weights"] if self.switches.wakes_partially else []))
        return self._answer({"status": "sleeping" if self.asleep else "awake", "tags": tags or None})

    async def _wake(self, tags: list[str]) -> None:
        named = [tag for tag in tags if tag != "scheduling"]
        if set(named) <= self.asleep:  # an unknown tag, or one that is awake, makes the whole call a no-op
            woken = set(named or self.asleep)
            self.asleep -= woken
            if "weights" in woken and self.weights == HOST:
                self.weights = LOADED
        if not self.asleep:
            self.gauge = "awake"
            async with self.changed:
                self.paused = False
                self.changed.notify_all()

    async def is_sleeping(self, _: web.Request) -> web.Response:
        if self.switches.is_deaf:
            await asyncio.sleep(3600)
        if self.core_is_dead:
            return web.json_response({"error": {"message": "EngineCore encountered an issue"}}, status=500)
        return web.json_response({"is_sleeping": self.paused or bool(self.asleep)})

    async def collective_rpc(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not isinstance(body, dict) or "method" not in body:
            return web.json_response({"detail": "Missing 'method' in request body"}, status=400)
        if self.switches.reload_fails:
            return web.json_response({"error": {"message": "no such file: model.safetensors"}}, status=500)
        if body["method"] == "reload_weights" and "weights" not in self.asleep:
            self.weights = LOADED
        return web.json_response({"results": [None]})

    async def reset_prefix_cache(self, _: web.Request) -> web.Response:
        if self.switches.prefix_resets_fail > 0:
            self.switches.prefix_resets_fail -= 1
            return self._answer({"success": False})
        return self._answer({"success": True})

    async def abort_requests(self, request: web.Request) -> web.Response:
        await request.json()  # without a body it is a 400
        async with self.changed:
            count, self.aborted = self.running, self.aborted + self.running
            self.changed.notify_all()
        return web.json_response({"status": "aborted", "aborted": count})

    def _answer(self, document: dict[str, Any]) -> web.Response:
        return web.Response() if self.switches.old_answers else web.json_response(document)

    # ---- other routes ----------------------------------------------------------------------------------------------

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.core_is_dead or self.switches.start_s > 0 else 200)

    async def metrics(self, _: web.Request) -> web.Response:
        lines = [f'vllm:num_requests_running{{engine="0",model_name="tiny"}} {self.running}.0']
        if self.switches.gauge:
            labels = 'engine="0",model_name="tiny"'
            lines += [
                f'vllm:engine_sleep_state{{{labels},sleep_state="{state}"}} {float(state == self.gauge)}'
                for state in ("awake", "weights_offloaded", "discard_all")
            ]
        return web.Response(text="# TYPE vllm:engine_sleep_state gauge\n" + "\n".join(lines) + "\n")

    async def complete(self, request: web.Request) -> web.Response:
        """Answer 4; garbage without weights. A prompt `hold` is decoded until it is aborted."""
        body = await request.json()
        prompt = body.get("prompt") or body["messages"][0]["content"]
        self.waiting += 1
        try:
            async with self.changed:
                await self.changed.wait_for(lambda: not self.paused)
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            if prompt == "hold":
                before = self.aborted
                async with self.changed:
                    await self.changed.wait_for(lambda: self.aborted > before)
        finally:
            self.running -= 1
        text = " 4" if self.weights == LOADED else GARBAGE
        choice: dict[str, Any] = {"text": text, "message": {"role": "assistant", "content": text}}
        return web.json_response({"choices": [choice | {"finish_reason": "abort" if prompt == "hold" else "stop"}]})

    def app(self) -> web.Application:
        """Return its application."""

        @web.middleware
        async def noted(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
            self.calls.append(f"{request.method} {request.path_qs}")
            self.bodies.append(await request.text())
            answer: web.StreamResponse = await handler(request)
            return answer

        app = web.Application(middlewares=[noted])
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        for path in ("/v1/completions", "/v1/chat/completions"):
            app.router.add_post(path, self.complete)
        if self.switches.dev_mode:
            app.router.add_get("/is_sleeping", self.is_sleeping)
            for one in (self.sleep, self.wake_up, self.collective_rpc, self.reset_prefix_cache):
                app.router.add_post(f"/{one.__name__}", one)
            if self.switches.aborts:
                app.router.add_post("/abort_requests", self.abort_requests)
        return app


@asynccontextmanager
async def running_vllm(switches: Switches | None = None) -> AsyncIterator[VllmServer]:
    """Serve on a free port, in this event loop. A crash closes the port."""
    server = VllmServer(switches or Switches())
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    crashes: list[asyncio.Task[None]] = []
    server.crash = lambda: crashes.append(asyncio.create_task(runner.cleanup()))
    try:
        yield server
    finally:
        await runner.cleanup()


def main() -> None:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--switches", default="{}")
    options = parser.parse_args()

    async def created() -> web.Application:
        switches = Switches(**json.loads(options.switches))
        server = VllmServer(switches, crash=lambda: os._exit(139))
        asyncio.get_running_loop().call_later(switches.start_s, lambda: setattr(switches, "start_s", 0.0))
        return server.app()

    web.run_app(created(), host="127.0.0.1", port=options.port, access_log=None, shutdown_timeout=0.1, print=None)


if __name__ == "__main__":
    main()
