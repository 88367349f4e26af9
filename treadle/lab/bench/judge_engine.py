"""An engine without a model, for the bench of GPUs: ``python judge_engine.py --port PORT``. Standard library only.

It answers chat completions with `score: 7`, and canaries with `4`. After the score each answer has what the engine
measured (`EngineClock`), because it is on the machine's monotonic clock and nobody else sees the first byte arrive.
"""

import argparse
import asyncio
import json
import time
from dataclasses import dataclass
from typing import Final, cast

SCORE: Final = 7
CANARY: Final = ("2+2=", "4")
"""Prompt and answer."""
_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_ABSENT: Final = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


@dataclass
class EngineClock:
    """Times of one engine, monotonic ns."""

    port: int
    checked_ns: int = 0
    """When the answer of the last canary was sent; 0: before the first one."""
    calls: int = 0
    """Completions since then."""

    def completion(self, first_byte_ns: int) -> dict[str, int]:
        """Count a completion. Return what its answer says of its first byte."""
        self.calls += 1
        since_ns = first_byte_ns - self.checked_ns if self.checked_ns else 0
        return {"port": self.port, "calls": self.calls, "since_canary_ns": since_ns}


class _Connection(asyncio.Protocol):
    """One connection. Requests are small HTTP of known clients."""

    def __init__(self, clock: EngineClock) -> None:
        self._clock = clock
        self._received = b""
        self._first_byte_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self._received:
            self._first_byte_ns = time.monotonic_ns()
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator or len(body) < _length(head := head.lower()):
            return
        self._received = b""
        self._answer(head, body)
        if b"connection: close" in head:
            self._transport.close()

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"get /health"):
            self._send({"status": "ok"})
        elif head.startswith(b"post /v1/chat/completions"):
            text = f"score: {SCORE} {json.dumps(self._clock.completion(self._first_byte_ns))}"
            message = {"role": "assistant", "content": text}
            self._send({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        elif head.startswith(b"post /v1/completions") and CANARY[0].encode() in body:
            self._clock.calls, self._clock.checked_ns = 0, time.monotonic_ns()
            self._send({"choices": [{"index": 0, "text": CANARY[1], "finish_reason": "stop"}]})
        else:
            self._transport.write(_ABSENT)

    def _send(self, document: object) -> None:
        body = json.dumps(document).encode()
        self._transport.write(_HEAD % (len(body), body))


def _length(head: bytes) -> int:
    at = head.find(b"content-length:")
    return int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0


async def _serve(port: int) -> None:
    clock = EngineClock(port)
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(clock), "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    asyncio.run(_serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
