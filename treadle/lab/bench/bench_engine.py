"""An inference engine without a model, for the router's bench: ``python -m treadle.lab.bench.bench_engine``.

It prints its port, and answers until its input ends. Streamed answers have `EVENTS` events, one in `PAUSE_S`, each with
the monotonic time at which it was sent. With `--ids` it is recognised as vLLM, and answers with ids: a prompt of n
words is 0 to n - 1, and the output continues it. So each longer prompt extends it.
"""

import asyncio
import sys
import time
from typing import Final, cast

import msgspec

MODEL: Final = "bench"
EVENTS: Final = 100
PAUSE_S: Final = 0.02
_WHOLE: Final = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"}}]}'
_MODELS: Final = b'{"object":"list","data":[{"id":"bench","object":"model"}]}'
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
_STREAM: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_METRICS: Final = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000000"} 1.0\n'
WORD: Final = b"word"
OUTPUT: Final = 8
"""Ids of an answer."""
_ABSENT: Final = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


class _Engine(asyncio.Protocol):
    """One connection. Requests are small HTTP of known clients."""

    def __init__(self, *, ids: bool = False) -> None:
        self._ids = ids
        self._received = b""
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no instance of it

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        for task in self._tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            size = _length(head)
            if len(self._received) < end + 4 + size:
                return
            body, self._received = self._received[end + 4 : end + 4 + size], self._received[end + 4 + size :]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"post "):
            if b'"stream":true' in body[:200]:
                task = asyncio.get_running_loop().create_task(self._stream())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif self._ids:
                self._send(_with_ids(body.count(WORD)))
            else:
                self._send(_WHOLE)
        elif head.startswith((b"get /v1/models", b"get /health", b"get /readiness", b"get /liveness")):
            self._send(_MODELS)
        elif self._ids and head.startswith(b"get /metrics"):
            self._send(_METRICS)
        else:
            self._transport.write(_ABSENT)

    def _send(self, body: bytes) -> None:
        self._transport.write(_HEAD % (b"application/json", len(body), body))

    async def _stream(self) -> None:
        self._transport.write(_STREAM)
        for _ in range(EVENTS):
            event = b'data: {"sent":%d,"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n' % time.monotonic_ns()
            self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
            await asyncio.sleep(PAUSE_S)
        self._transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def _with_ids(count: int) -> bytes:
    """Return vLLM's answer to a prompt of so many tokens, with `return_token_ids` and `logprobs`."""
    output = range(count, count + OUTPUT)
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "hi"},
        "finish_reason": "stop",
        "token_ids": list(output),
        "logprobs": {"content": [{"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []} for _ in output]},
    }
    usage = {"prompt_tokens": count, "completion_tokens": OUTPUT}
    return msgspec.json.encode(
        {"object": "chat.completion", "prompt_token_ids": list(range(count)), "choices": [choice], "usage": usage}
    )


def _length(head: bytes) -> int:
    at = head.find(b"content-length:")
    return int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    ids = "--ids" in sys.argv[1:]
    server = await loop.create_server(lambda: _Engine(ids=ids), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    import uvloop

    uvloop.run(_serve())


if __name__ == "__main__":
    main()
