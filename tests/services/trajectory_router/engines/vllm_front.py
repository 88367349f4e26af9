"""A test front that speaks vLLM's HTTP surface over a real llama.cpp worker, and logs what was sampled.

It tokenises a prompt once and sends ids to the worker. What the worker reports goes to the log and to the client from
one place, so the log is the oracle of a token record. Nothing of the router is used here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import count
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp import web

from tests.services.trajectory_router.engines.answers import Answer, Fields, Wanted
from tests.services.trajectory_router.engines.call_log import LoggedCall
from tests.services.trajectory_router.engines.generation import End, Entry, Piece, Refused, completion_body, generate
from tests.services.trajectory_router.engines.llamacpp import CONTEXT, SLOTS
from tests.services.trajectory_router.engines.prompts import BOS, Tokenizer, tool_schema

MODEL: Final = "gemma-vllm"
VERSION: Final = "0.33.0"
MOST_TOKENS: Final = 64
"""Output tokens of a call without `max_tokens`. vLLM would fill the context, which takes a minute here."""
BLOCK: Final = 16

_encode = msgspec.json.encode


class VllmFront:
    """A front to one worker. Tests read `log`, and change the other fields while it serves."""

    def __init__(self, engine: aiohttp.ClientSession) -> None:
        self.url = ""
        self.log: list[LoggedCall] = []
        """Calls in the order in which they arrived. Canaries of the router are among them."""
        self.version = "default"
        """Version of the weights under which the next tokens are sampled."""
        self.stream_interval = 1
        """Pieces in one event of a stream, as with vLLM's `--stream-interval`."""
        self.nulls = False
        """Show fields of token ids that were not requested as null, as versions of vLLM do."""
        self._engine = engine
        self._tokenizer = Tokenizer(engine)
        self._serials = count()
        self._to_abort: set[str] = set()

    def call(self, id_: str) -> LoggedCall:
        """Return a call by the id of its answer."""
        return next(call for call in self.log if call.id == id_)

    @property
    def running(self) -> list[LoggedCall]:
        """Calls that have not ended."""
        return [call for call in self.log if not call.finish_reason]

    def abort(self, *ids: str) -> None:
        """End running calls at their next token; their clients get what was sampled. Without ids: all."""
        self._to_abort |= set(ids or (call.id for call in self.running))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a model call."""
        body: Fields = await request.json()
        chat = request.path == "/v1/chat/completions"
        call = LoggedCall(
            id=f"{'chatcmpl' if chat else 'cmpl'}-{next(self._serials)}",
            route=request.path,
            request=body,
            headers={name.lower(): value for name, value in request.headers.items()},
        )
        self.log.append(call)
        try:
            return await self._answer(request, call, body)
        except Refused as error:
            call.finish_reason = "error"
            document = {"error": {"message": str(error), "type": "BadRequestError", "code": error.status}}
            return web.json_response(document, status=error.status)
        except (asyncio.CancelledError, ConnectionResetError):
            call.finish_reason = call.finish_reason or "disconnect"
            raise
        except aiohttp.ClientError:  # the worker has ended, so this engine has
            assert request.transport is not None
            request.transport.abort()
            raise
        finally:
            call.finish_reason = call.finish_reason or "error"
            self._to_abort.discard(call.id)

    async def _answer(self, request: web.Request, call: LoggedCall, body: Fields) -> web.StreamResponse:
        if body.get("n", 1) != 1 or body.get("echo"):
            raise Refused(400, "the test front serves n = 1 without echo")
        chat = request.path == "/v1/chat/completions"
        wanted = Wanted.by(body, chat=chat)
        call.prompt_ids = await self._prompt(body, chat=chat)
        most = body.get("max_completion_tokens") or body.get("max_tokens") or MOST_TOKENS
        asked = completion_body(call.prompt_ids, body, most_tokens=most, top=wanted.logprobs or 0)
        tools = (body.get("tools") or []) if body.get("tool_choice") not in (None, "none", "auto") else []
        if tools:
            asked["json_schema"] = tool_schema(tools)
        texts: dict[int, str] = {}
        answer = Answer(call, body.get("model") or MODEL, wanted, texts, nulls=self.nulls)
        async with aclosing(self._pieces(call, asked, texts, needs_texts=wanted.logprobs is not None)) as pieces:
            if body.get("stream"):
                return await self._stream(request, call, answer, pieces, has_tools=bool(tools))
            entries: list[Entry] = []
            stop_string: str | None = None
            async for piece in pieces:
                if isinstance(piece, End):
                    stop_string = piece.stop_string
                else:
                    entries += piece.entries
            calls = _tool_calls(call) if tools else None
            return web.json_response(body=_encode(answer.whole(entries, stop_string, calls)))

    async def _prompt(self, body: Fields, *, chat: bool) -> list[int]:
        if chat:
            return await self._tokenizer.of_chat(body["messages"], body.get("tools") or [])
        prompt = body["prompt"]
        return [BOS, *await self._tokenizer.ids(prompt)] if isinstance(prompt, str) else list(prompt)

    async def _pieces(
        self, call: LoggedCall, asked: Fields, texts: dict[int, str], *, needs_texts: bool
    ) -> AsyncGenerator[Piece | End, None]:
        """Yield the engine's output after it was logged; its end, too."""
        async with aclosing(generate(self._engine, asked)) as pieces:
            async for piece in pieces:
                if isinstance(piece, End):
                    call.finish_reason = "length" if piece.finish_reason == "length" else "stop"
                    call.cached_tokens = piece.cached_tokens
                    yield piece
                    return
                ids = [entry.id for entry in piece.entries]
                call.add(ids, [entry.logprob for entry in piece.entries], self.version)
                call.text += piece.text
                if needs_texts:
                    for id_ in ids:
                        texts[id_] = await self._tokenizer.text(id_)
                yield piece
                if call.id in self._to_abort:
                    break
        call.finish_reason = "abort"
        yield End("abort", None, 0)

    async def _stream(
        self,
        request: web.Request,
        call: LoggedCall,
        answer: Answer,
        pieces: AsyncIterator[Piece | End],
        *,
        has_tools: bool,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})

        async def send(event: Fields | None) -> None:
            if event is None:
                return
            if not response.prepared:
                await response.prepare(request)
            await response.write(b"data: " + _encode(event) + b"\n\n")

        held, begun = list[Piece](), False
        async for piece in pieces:  # a refused call raises here, before the first byte
            if not begun:
                await send(answer.first())
                begun = True
            if isinstance(piece, Piece):
                held.append(piece)
            if held and (isinstance(piece, End) or len(held) >= self.stream_interval):
                text = "" if has_tools else "".join(one.text for one in held)
                await send(answer.delta(text, [entry for one in held for entry in one.entries]))
                held.clear()
            if isinstance(piece, End):
                await send(answer.last(piece.stop_string, _tool_calls(call) if has_tools else None))
                await send(answer.usage_event())
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _tool_calls(call: LoggedCall) -> list[Fields] | None:
    """Return the tool call of an output; None if it is incomplete. Sets the finish reason."""
    try:
        called: dict[str, Any] = msgspec.json.decode(call.text)
    except msgspec.DecodeError:
        return None
    if call.finish_reason == "stop":
        call.finish_reason = "tool_calls"
    function = {"name": called["name"], "arguments": _encode(called["arguments"]).decode()}
    return [{"id": f"call-{call.id}", "type": "function", "function": function}]


@asynccontextmanager
async def running_front(engine_url: str) -> AsyncIterator[VllmFront]:
    """Serve a front to a llama.cpp worker on a free port, in this event loop."""
    connector = aiohttp.TCPConnector(force_close=True)  # a test's router and worker may be killed at any time
    async with aiohttp.ClientSession(engine_url, connector=connector) as engine:
        front = VllmFront(engine)
        runner = web.AppRunner(_app(front), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            front.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield front
        finally:
            await runner.cleanup()


def _app(front: VllmFront) -> web.Application:
    async def models(_: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": CONTEXT}
        return web.json_response({"object": "list", "data": [model]})

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def metrics(_: web.Request) -> web.Response:
        config = f'vllm:cache_config_info{{block_size="{BLOCK}",num_gpu_blocks="{SLOTS * CONTEXT // BLOCK}"}} 1.0'
        running = f'vllm:num_requests_running{{model_name="{MODEL}"}} {len(front.running)}'
        return web.Response(text=f"{config}\n{running}\n")

    async def log(_: web.Request) -> web.Response:
        return web.Response(body=b"".join(_encode(call) + b"\n" for call in front.log))

    async def weights(_: web.Request) -> web.Response:
        return web.json_response({"weight_version": front.version})

    async def update(request: web.Request) -> web.Response:
        body = await request.json()
        front.version = str(body.get("new_version") or body["weight_version"])
        return web.json_response({"success": True, "weight_version": front.version})

    async def abort(request: web.Request) -> web.Response:
        ids = (await request.json()).get("request_ids") or [] if request.can_read_body else []
        front.abort(*ids)
        return web.json_response({})

    app = web.Application(client_max_size=64 << 20)
    for path, read in (("/v1/models", models), ("/health", health), ("/version", version), ("/metrics", metrics)):
        app.router.add_get(path, read)
    app.router.add_get("/log", log)
    app.router.add_get("/weight_info", weights)
    for path in ("/update_weight_version", "/finish_weight_update"):
        app.router.add_post(path, update)
    app.router.add_post("/abort_requests", abort)
    for path in ("/v1/chat/completions", "/v1/completions"):
        app.router.add_post(path, front.answer)
    return app
