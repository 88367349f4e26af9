"""A real model behind vLLM's sleep contract, on the CPU. For tests, examples and `treadle demo --gpu`.

    VLLM_SERVER_DEV_MODE=1 python -m treadle.testing.sleeping_vllm WEIGHTS --port 8000 --enable-sleep-mode

The contract is that of vLLM 0.33 (entrypoints/serve/dev/sleep):
  - parameters of `/sleep` and `/wake_up` are in the query, a body is ignored; a level above 2 is a 422;
  - requests to a sleeping engine wait until it wakes, and `/health` stays 200;
  - an unknown tag, or one that is awake, makes a whole `/wake_up` a no-op with 200;
  - scheduling resumes when every tag is awake;
  - after level 2 the weights are loaded again by `/collective_rpc` alone. Without it, answers are garbage with 200.

A sleep frees memory indeed: llama.cpp's server is dropped, and loaded again when all of it is awake. `mode=keep` holds
running requests and computes them again after the wake. Streams are refused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from aiohttp import web

from treadle.testing.llamacpp import LlamaCpp

LOADED, HOST, DROPPED = "loaded", "host", "dropped"
"""Places of the weights."""
TAGS: Final = frozenset({"weights", "kv_cache"})
GARBAGE: Final = "!!!!"
GAUGE: Final = {0: "none", 1: "weights_offloaded", 2: "discard_all"}
MODES: Final = ("abort", "wait", "keep")
COMPLETIONS: Final = ("/v1/completions", "/v1/chat/completions")
MOST_BODY: Final = 8 << 20

Interruption = Literal["", "abort", "again"]


class SleepingModel(Protocol):
    """A model that can be loaded and dropped."""

    async def load(self) -> None:
        """Load it. May be repeated. Raises RuntimeError if it cannot be loaded."""
        ...

    async def unload(self) -> None:
        """Free its memory. May be repeated."""
        ...

    async def complete(self, path: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """Return status and body of a completion. Can be cancelled."""
        ...


class _Request:
    """A completion that is computed."""

    def __init__(self, task: asyncio.Task[tuple[int, bytes]]) -> None:
        self.task = task
        self.interrupted: Interruption = ""

    def interrupt(self, how: Interruption) -> None:
        self.interrupted = how
        self.task.cancel()


class SleepingVllm:
    """State of the server. Control calls are executed one after the other."""

    def __init__(self, model: SleepingModel) -> None:
        """`model` is loaded already."""
        self._model = model
        self._asleep: set[str] = set()
        self._paused = False
        self._weights = LOADED
        self._gauge = "awake"
        self._requests: set[_Request] = set()
        self._changed = asyncio.Condition()
        self._control = asyncio.Lock()

    # ---- sleep and wake --------------------------------------------------------------------------------------------

    async def sleep(self, level: int, mode: str) -> None:
        """Enter a level. A second sleep changes only the gauge."""
        async with self._control:
            self._paused = True
            await self._interrupt(mode)
            if level >= 1 and "weights" not in self._asleep:
                self._asleep = set(TAGS)
                self._weights = HOST if level == 1 else DROPPED
                await self._model.unload()
            self._gauge = GAUGE[level]

    async def wake_up(self, tags: list[str]) -> bool:
        """Wake tags; none: all. Return whether all of it is awake now. Raises as the model's `load`."""
        async with self._control:
            named = {tag for tag in tags if tag != "scheduling"}
            if named <= self._asleep:
                woken = named or set(self._asleep)
                if self._asleep == woken and (self._weights != DROPPED):
                    await self._model.load()
                self._asleep -= woken
                if "weights" in woken and self._weights == HOST:
                    self._weights = LOADED
            if not self._asleep:
                self._gauge = "awake"
                await self._resume()
            return not self._asleep

    async def reload_weights(self) -> None:
        """Load the weights again, as after level 2. Raises as the model's `load`."""
        async with self._control:
            if "weights" in self._asleep:
                return
            if not self._asleep:
                await self._model.load()
            self._weights = LOADED

    async def abort(self) -> int:
        """End all running requests. Return their number."""
        running = list(self._requests)
        for one in running:
            one.interrupt("abort")
        await self._idle()
        return len(running)

    @property
    def is_sleeping(self) -> bool:
        return self._paused or bool(self._asleep)

    async def complete(self, path: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """Return a completion, as soon as the scheduler runs."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._paused)
            if self._weights != LOADED:
                return 200, _completion(path, GARBAGE, "stop")
            one = _Request(asyncio.ensure_future(self._model.complete(path, body)))
            self._requests.add(one)
            try:
                await asyncio.wait({one.task})
            finally:
                one.task.cancel()
                self._requests.discard(one)
                async with self._changed:
                    self._changed.notify_all()
            if not one.task.cancelled():
                return one.task.result()
            if one.interrupted != "again":
                return 200, _completion(path, "", "abort")

    def metrics(self) -> str:
        """Return the gauges in the text format of Prometheus."""
        labels = 'engine="0",model_name="model"'
        lines = [f"vllm:num_requests_running{{{labels}}} {float(len(self._requests))}"]
        lines += [
            f'vllm:engine_sleep_state{{{labels},sleep_state="{state}"}} {float(state == self._gauge)}'
            for state in ("awake", "weights_offloaded", "discard_all")
        ]
        return "\n".join(lines) + "\n"

    async def _interrupt(self, mode: str) -> None:
        """Handle running requests: abort them, wait for them, or keep them for after the wake."""
        if mode != "wait":
            for one in list(self._requests):
                one.interrupt("abort" if mode == "abort" else "again")
        await self._idle()

    async def _idle(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._requests)

    async def _resume(self) -> None:
        async with self._changed:
            self._paused = False
            self._changed.notify_all()


def _completion(path: str, text: str, ended: str) -> bytes:
    choice: dict[str, Any] = {"index": 0, "finish_reason": ended}
    if path.endswith("/chat/completions"):
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    return json.dumps({"object": "completion", "choices": [choice]}).encode()


# ---- HTTP ----------------------------------------------------------------------------------------------------------


class _Routes:
    def __init__(self, vllm: SleepingVllm) -> None:
        self._vllm = vllm

    async def sleep(self, request: web.Request) -> web.Response:
        raw, mode = request.query.get("level", "1"), request.query.get("mode", "abort")
        if not raw.isdecimal() or int(raw) > 2:
            return _invalid("level", "Input should be less than or equal to 2", raw)
        if mode not in MODES:
            return _invalid("mode", "Input should be 'abort', 'wait' or 'keep'", mode)
        await self._vllm.sleep(int(raw), mode)
        return web.json_response({"status": "sleeping", "level": int(raw)})

    async def wake_up(self, request: web.Request) -> web.Response:
        tags = request.query.getall("tags", [])
        awake = await self._vllm.wake_up(tags)
        return web.json_response({"status": "awake" if awake else "sleeping", "tags": tags or None})

    async def is_sleeping(self, _: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self._vllm.is_sleeping})

    async def collective_rpc(self, request: web.Request) -> web.Response:
        body = await _json(request)
        if not isinstance(body, dict) or "method" not in body:
            return web.json_response({"detail": "Missing 'method' in request body"}, status=400)
        if body["method"] == "reload_weights":
            await self._vllm.reload_weights()
        return web.json_response({"results": [None]})

    async def reset_prefix_cache(self, _: web.Request) -> web.Response:
        return web.json_response({"success": True})

    async def abort_requests(self, request: web.Request) -> web.Response:
        if not isinstance(await _json(request), dict):
            return web.json_response({"detail": "the body should be a JSON object"}, status=400)
        return web.json_response({"status": "aborted", "aborted": await self._vllm.abort()})

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self._vllm.metrics())

    async def complete(self, request: web.Request) -> web.Response:
        body = await _json(request)
        if not isinstance(body, dict) or body.get("stream"):
            message = "the body should be a JSON object without `stream`: this server streams nothing"
            return web.json_response({"error": {"message": message, "type": "BadRequestError"}}, status=400)
        status, answer = await self._vllm.complete(request.path, body)
        return web.Response(status=status, body=answer, content_type="application/json")


async def _json(request: web.Request) -> Any:
    try:
        return json.loads(await request.read())
    except ValueError:
        return None


def _invalid(field: str, message: str, given: str) -> web.Response:
    detail = [{"type": "value_error", "loc": ["query", field], "msg": message, "input": given}]
    return web.json_response({"detail": detail}, status=422)


@web.middleware
async def _failures(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
    """Answer 500 with the reason, as vLLM does, if the model cannot be loaded."""
    try:
        return await handler(request)
    except (RuntimeError, MemoryError, OSError) as error:
        problem = {"message": f"{type(error).__name__}: {error}", "type": "InternalServerError"}
        return web.json_response({"error": problem}, status=500)


def application(vllm: SleepingVllm, *, controls: bool) -> web.Application:
    """Return the server. `controls`: with the routes of sleep mode; else they are 404, as without its flag."""
    routes = _Routes(vllm)
    app = web.Application(middlewares=[_failures], client_max_size=MOST_BODY)
    app.router.add_get("/health", routes.health)
    app.router.add_get("/metrics", routes.metrics)
    for path in COMPLETIONS:
        app.router.add_post(path, routes.complete)
    if controls:
        app.router.add_get("/is_sleeping", routes.is_sleeping)
        for one in (routes.sleep, routes.wake_up, routes.collective_rpc, routes.reset_prefix_cache):
            app.router.add_post(f"/{one.__name__}", one)
        app.router.add_post("/abort_requests", routes.abort_requests)
    return app


def main() -> None:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser(description="Serve a small model on the CPU with vLLM's sleep contract.")
    parser.add_argument("weights", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", default="gemma")
    parser.add_argument("--enable-sleep-mode", action="store_true")
    options = parser.parse_args()
    controls = options.enable_sleep_mode and os.environ.get("VLLM_SERVER_DEV_MODE") == "1"
    model = LlamaCpp(options.weights, options.served_model_name)

    async def created() -> web.Application:
        await model.load()
        app = application(SleepingVllm(model), controls=controls)
        app.on_cleanup.append(lambda _: model.close())
        return app

    with suppress(KeyboardInterrupt):
        web.run_app(
            created(), host="127.0.0.1", port=options.port, access_log=None, handler_cancellation=True,
            shutdown_timeout=0.5, print=None,
        )  # fmt: skip


if __name__ == "__main__":
    main()
