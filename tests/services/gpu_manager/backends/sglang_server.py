"""A server with SGLang's control routes and no model. It dies as SGLang 0.5.23 does (facts A3), and by its switches.

In the event loop of a test: `async with running_sglang(Switches(...)) as engine`. As a process:
`python sglang_server.py --port 8000 --switches '{"has_ready": false}'`. So it imports nothing of this repository.
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

TAGS = ("kv_cache", "weights", "cuda_graph")
GARBAGE = "!!!!"
LAST_LOADS = 2
"""Readings of the load that still show a request after its end: the scheduler publishes it with a delay."""


@dataclass
class Switches:
    """Deviations from a good server."""

    bad_gateways: list[str] = field(default_factory=list)
    """Paths whose next call is answered with 502 before it reaches the server."""
    cut_gateways: list[str] = field(default_factory=list)
    """Paths whose next call is executed, and then answered with 502."""
    has_ready: bool = True
    has_loads: bool = True
    """False: `/get_load` instead of `/v1/loads`, as in older versions."""
    memory_saver: bool = True
    cpu_backup: bool = True
    never_idle: bool = False
    resume_ooms: str = ""
    """Tag whose resume runs out of memory."""
    continue_has_no_effect: bool = False
    release_has_no_effect: bool = False
    start_s: float = 0.0
    """Time for which `/health` answers 503."""


@dataclass
class SglangServer:
    """State of the server."""

    switches: Switches
    crash: Callable[[], None] = lambda: None
    url: str = ""
    released: set[str] = field(default_factory=set)
    paused: bool = False
    weights_are_lost: bool = False
    is_dead: bool = False
    running: int = 0
    shown: int = 0
    """Readings of the load that will still show a request."""
    aborts: int = 0
    generated: int = 0
    """Requests that reached the scheduler, those of `/health` included."""
    calls: list[str] = field(default_factory=list)
    """Method and path of the calls."""
    bodies: list[Any] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    # ---- control routes --------------------------------------------------------------------------------------------

    async def release_memory_occupation(self, request: web.Request) -> web.Response:
        tags = (await request.json()).get("tags") or list(TAGS)
        if self.running or self.shown:
            return self._die("release_memory_occupation should be called only when server is idle.")
        if self.switches.release_has_no_effect:
            return web.json_response(None)
        self.released |= set(tags)
        if "weights" in tags and not self.switches.cpu_backup:
            self.weights_are_lost = True
        return web.json_response(None)

    async def resume_memory_occupation(self, request: web.Request) -> web.Response:
        tags = (await request.json()).get("tags") or list(TAGS)
        if self.switches.resume_ooms in tags:
            return web.json_response({"error": {"message": "CUDA out of memory. Tried to allocate 2 GiB"}}, status=400)
        for tag in tags:
            if tag not in self.released:
                return self._die(f"KeyError: {tag!r}")
            self.released.remove(tag)
        return web.json_response(None)

    async def pause_generation(self, request: web.Request) -> web.Response:
        mode = (await request.json()).get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            return web.json_response({"error": {"message": f"mode {mode}"}}, status=400)
        self.paused = True
        if mode == "abort":
            await self._abort_all()
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, request: web.Request) -> web.Response:
        await request.json()
        if not self.switches.continue_has_no_effect:
            async with self.changed:
                self.paused = False
                self.changed.notify_all()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def abort_request(self, request: web.Request) -> web.Response:
        if (await request.json()).get("abort_all"):
            await self._abort_all()
        return web.Response()

    async def _abort_all(self) -> None:
        async with self.changed:
            self.aborts += 1
            self.changed.notify_all()

    async def loads(self, request: web.Request) -> web.Response:
        busy = self.switches.never_idle or self.shown > 0
        count = self.running + (1 if busy else 0)
        self.shown = max(0, self.shown - 1)
        if request.path == "/get_load":
            return web.json_response([{"dp_rank": 0, "num_reqs": count, "num_waiting_reqs": 0, "num_tokens": 7}])
        load = {"dp_rank": 0, "num_running_reqs": count, "num_waiting_reqs": 0, "num_used_tokens": 7}
        return web.json_response({"version": "0.5.23", "loads": [load]})

    # ---- other routes ----------------------------------------------------------------------------------------------

    async def ready(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.paused else 200)

    async def health(self, _: web.Request) -> web.Response:
        if self.switches.start_s > 0:
            return web.Response(status=503)
        return await self._generated("", web.Response())

    async def complete(self, request: web.Request) -> web.Response:
        """Answer 4; garbage without weights. A prompt `hold` is decoded until it is aborted."""
        body = await request.json()
        prompt = body.get("prompt") or body["messages"][0]["content"]
        text = GARBAGE if self.weights_are_lost else " 4"
        reason = "abort" if prompt == "hold" else "stop"
        choice = {"text": text, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
        return await self._generated(prompt, web.json_response({"choices": [choice]}))

    async def _generated(self, prompt: str, answer: web.Response) -> web.Response:
        async with self.changed:
            await self.changed.wait_for(lambda: not self.paused)
        if self.released:
            return self._die("illegal memory access")
        self.generated += 1
        self.running += 1
        try:
            if prompt == "hold":
                before = self.aborts
                async with self.changed:
                    await self.changed.wait_for(lambda: self.aborts > before)
        finally:
            self.running -= 1
            self.shown = LAST_LOADS if prompt == "hold" else self.shown
        return answer

    async def server_info(self, _: web.Request) -> web.Response:
        flags = {
            "enable_memory_saver": self.switches.memory_saver,
            "enable_weights_cpu_backup": self.switches.cpu_backup,
        }
        return web.json_response({"version": "0.5.23", **flags})

    def _die(self, reason: str) -> web.Response:
        """The scheduler raises, and takes the server with it."""
        print(f"Scheduler hit an exception: AssertionError: {reason}", flush=True)  # noqa: T201 - the engine's log
        self.is_dead = True
        self.crash()
        return web.Response(status=500)

    def app(self) -> web.Application:
        """Return its application."""

        @web.middleware
        async def noted(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
            self.calls.append(f"{request.method} {request.path}")
            self.bodies.append(await request.text())
            if request.path in self.switches.bad_gateways:
                self.switches.bad_gateways.remove(request.path)
                return web.Response(status=502, text="Bad Gateway")
            answer: web.StreamResponse = await handler(request)
            if request.path in self.switches.cut_gateways:
                self.switches.cut_gateways.remove(request.path)
                return web.Response(status=502, text="Bad Gateway")
            return answer

        app = web.Application(middlewares=[noted])
        app.router.add_get("/health", self.health)
        app.router.add_get("/server_info", self.server_info)
        app.router.add_get("/v1/loads" if self.switches.has_loads else "/get_load", self.loads)
        if self.switches.has_ready:
            app.router.add_get("/ready", self.ready)
        for path in ("/v1/completions", "/v1/chat/completions"):
            app.router.add_post(path, self.complete)
        posts = (self.release_memory_occupation, self.resume_memory_occupation, self.abort_request)
        for one in (*posts, self.pause_generation, self.continue_generation):
            app.router.add_post(f"/{one.__name__}", one)
        return app


@asynccontextmanager
async def running_sglang(switches: Switches | None = None) -> AsyncIterator[SglangServer]:
    """Serve on a free port, in this event loop. A crash closes the port."""
    server = SglangServer(switches or Switches())
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
        server = SglangServer(switches, crash=lambda: os._exit(137))
        asyncio.get_running_loop().call_later(switches.start_s, lambda: setattr(switches, "start_s", 0.0))
        return server.app()

    web.run_app(created(), host="127.0.0.1", port=options.port, access_log=None, shutdown_timeout=0.1, print=None)


if __name__ == "__main__":
    main()
