"""HTTP of the model server.

Each request has one limit in time, from its head to its answer, and one in bytes. Above the limit of requests, or of
tokens that wait, the answer is 503 with `Retry-After`. A request to an evicted model is answered with 409 at once.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from services.gpu_manager.torch_server.answering import ModelAnswering
from services.gpu_manager.torch_server.bodies import EmbedBody, LogprobsBody, Refusal, ScoreBody, ServerState
from services.gpu_manager.torch_server.encoder_config import EncoderConfig
from services.gpu_manager.torch_server.engine import Engine, EngineLimits, RunningRequest
from services.gpu_manager.torch_server.errors import RequestRejected
from services.gpu_manager.torch_server.model import LoadedModel, prepare_torch
from services.gpu_manager.torch_server.options import ServerOptions
from services.gpu_manager.torch_server.sequences import TokenSequence
from services.gpu_manager.torch_server.texts import Texts

JSON: Final = "application/json"
BUSY_RETRY_S: Final = 1.0
CLOSING_S: Final = 2.0
"""Seconds that connections have to end while the server stops."""

_B = TypeVar("_B", bound=msgspec.Struct)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Routes:
    """Handlers of one model."""

    model: LoadedModel
    engine: Engine
    answering: ModelAnswering
    options: ServerOptions
    open: int = 0
    """Requests for results whose handling has begun, accepted or not."""

    def application(self) -> web.Application:
        """Return the application. Bodies are read in its handlers, so the limits apply to them."""
        app = web.Application(middlewares=[_errors_as_json], client_max_size=self.options.body_bytes)
        app.router.add_post("/v1/score", self._computing(ScoreBody, self.answering.score))
        app.router.add_post("/v1/embed", self._computing(EmbedBody, self.answering.embed))
        app.router.add_post("/v1/logprobs", self._computing(LogprobsBody, self.answering.logprobs))
        app.router.add_get("/state", self._state)
        app.router.add_get("/health", self._health)
        app.router.add_post("/evict", self._evict)
        app.router.add_post("/restore", self._restore)
        app.router.add_post("/abort", self._abort)
        return app

    def _computing(self, body: type[_B], answer: Callable[[RunningRequest, _B], Awaitable[msgspec.Struct]]) -> Handler:
        decoder = msgspec.json.Decoder(body)

        async def handle(request: web.Request) -> web.StreamResponse:
            if self.open >= self.options.requests:
                raise RequestRejected(
                    503, "overloaded", f"{self.open} requests are open; send this request again later", BUSY_RETRY_S
                )
            self.open += 1
            try:
                async with asyncio.timeout(self.options.timeout_s):
                    decoded = _decoded(decoder, await request.read())
                    async with self.engine.accepted() as running:
                        return _answer(await answer(running, decoded))
            except TimeoutError:
                raise RequestRejected(
                    504, "timeout", f"the request took more than {self.options.timeout_s:g} s; send fewer inputs"
                ) from None
            finally:
                self.open -= 1

        return handle

    async def _health(self, _request: web.Request) -> web.StreamResponse:
        if self.engine.failure:
            raise RequestRejected(503, "broken", f"{self.engine.failure}; start this server again")
        return web.json_response({"status": "ok"})

    async def _state(self, _request: web.Request) -> web.StreamResponse:
        return _answer(self._current())

    async def _evict(self, _request: web.Request) -> web.StreamResponse:
        await self.engine.evict()
        return _answer(self._current())

    async def _restore(self, _request: web.Request) -> web.StreamResponse:
        await self.engine.restore()
        return _answer(self._current())

    async def _abort(self, _request: web.Request) -> web.StreamResponse:
        self.engine.abort()
        return _answer(self._current())

    def _current(self) -> ServerState:
        model, weights = self.model, self.model.weights
        return ServerState(
            residency=self.engine.residency,
            device_bytes=weights.device_bytes,
            host_bytes=weights.host_bytes,
            running=self.engine.running,
            reserved_bytes=weights.reserved_bytes,
            rss_bytes=_rss_bytes(),
            architecture=model.architecture.name,
            task=model.architecture.task,
            dtype=weights.dtype,
            device=str(weights.device),
            max_tokens=model.max_tokens,
            labels=model.architecture.labels,
            pid=os.getpid(),
            failure=self.engine.failure,
            took_s=self.engine.took_s,
        )


def load(options: ServerOptions) -> tuple[LoadedModel, Texts | None]:
    """LoadEngine the model, with its tokenizer, and compute one batch, which also starts the libraries of the device.

    Raises:
        InvalidModel: the folder or the device cannot be used.
        InsufficientMemory: the host or the device has too little memory.
    """
    prepare_torch(options.threads)
    model = LoadedModel(options.model, options.device, options.max_tokens)
    architecture = model.architecture
    texts = None
    if architecture.task != "logprobs" or (options.model / "tokenizer.json").is_file():
        texts = Texts(
            options.model,
            vocabulary=architecture.config.vocab_size,
            max_tokens=model.max_tokens,
            allows_pairs=isinstance(architecture.config, EncoderConfig) and architecture.config.type_vocab_size > 1,
        )
    model.forward([TokenSequence((0, 0))])
    return model, texts


async def serve(options: ServerOptions, model: LoadedModel, texts: Texts | None) -> None:
    """Serve until SIGTERM or SIGINT. The first line of standard output has the address.

    Raises:
        OSError: the address cannot be listened on.
    """
    limits = EngineLimits(options.batch_tokens, options.queued_tokens)
    engine = Engine(model.weights, model.forward, limits)
    answering = ModelAnswering(engine, model.architecture, texts, model.max_tokens)
    app = Routes(model, engine, answering, options).application()
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=CLOSING_S)
    await runner.setup()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    try:
        await web.TCPSite(runner, options.host, options.port).start()
        host, port = runner.addresses[0][:2]
        sys.stdout.write(f"{msgspec.json.encode({'host': host, 'port': port, 'pid': os.getpid()}).decode()}\n")
        sys.stdout.flush()
        await stopped.wait()
    finally:
        engine.abort()
        await runner.cleanup()
        await engine.close()
        answering.close()


def _decoded(decoder: msgspec.json.Decoder[_B], body: bytes) -> _B:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise RequestRejected(422, "invalid_body", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestRejected(400, "invalid_json", str(error)) from None


def _answer(value: msgspec.Struct, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type=JSON)


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestRejected as rejected:
        answer = _answer(Refusal(rejected.code, rejected.message), rejected.status)
        if rejected.retry_s is not None:
            answer.headers["Retry-After"] = str(max(1, math.ceil(rejected.retry_s)))
        return answer
    except web.HTTPRequestEntityTooLarge:
        return _answer(Refusal("too_large", "the body is too large; send fewer inputs in one request"), 413)
    except web.HTTPException as error:
        return _answer(
            Refusal("no_route", f"{request.method} {request.path[:100]}: {error.reason}; see GET /state"), error.status
        )


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
