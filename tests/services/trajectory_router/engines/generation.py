"""Calls of llama.cpp's `/completion`: ids in, ids and log-probabilities out, as they are sampled."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

BYTE_TOKENS: Final = range(238, 494)
"""Gemma's tokens of single bytes. llama.cpp never reports those of an incomplete character: neither their ids in a
stream nor their log-probabilities anywhere. So the front excludes them from sampling.
"""
NOT_SAMPLED: Final = [[token, False] for token in BYTE_TOKENS]
PASSED: Final = ("temperature", "seed", "top_p", "top_k", "min_p")
DEFAULTS: Final = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0}
"""vLLM's defaults. llama.cpp's own ones change the distribution."""


class Entry(NamedTuple):
    """One output token."""

    id: int
    logprob: float
    top: list[tuple[int, str, float]]
    """Most likely tokens: id, text, log-probability."""


class Piece(NamedTuple):
    """Output tokens, and the text that they complete. It is empty while a stop string may begin."""

    text: str
    entries: list[Entry]


class End(NamedTuple):
    """The end of an output."""

    finish_reason: str
    """`stop` or `length`."""
    stop_string: str | None
    cached_tokens: int


class Refused(Exception):
    """The engine refuses the call: its status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def completion_body(ids: list[int], body: dict[str, Any], *, most_tokens: int, top: int) -> dict[str, Any]:
    """Return the engine's request for a client's `body`. `top`: most likely tokens to report for each position."""
    stop = body.get("stop") or []
    sampling = {name: body[name] for name in PASSED if body.get(name) is not None}
    if sampling.get("top_k") == -1:
        sampling["top_k"] = 0
    return {
        **DEFAULTS,
        **sampling,
        "prompt": ids,
        "n_predict": most_tokens,
        "n_probs": max(top, 1),
        "return_tokens": True,
        "stream": True,
        "stop": [stop] if isinstance(stop, str) else stop,
        "logit_bias": NOT_SAMPLED,
    }


async def generate(engine: aiohttp.ClientSession, body: dict[str, Any]) -> AsyncGenerator[Piece | End, None]:
    """Yield an output as it is sampled, and its end. Closing the generator aborts the call.

    Raises:
        Refused: the engine does not accept the call.
    """
    async with engine.post("/completion", json=body) as response:
        if response.status != 200:
            error = (await response.json())["error"]
            raise Refused(response.status, error["message"])
        count = 0
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            event = msgspec.json.decode(line[6:])
            count += len(event["tokens"])
            assert count == event["tokens_predicted"], f"llama.cpp has reported {count} ids: {event}"
            if event["tokens"]:
                yield Piece(event["content"], _entries(event))
            if event["stop"]:
                if event["content"]:
                    yield Piece(event["content"], [])
                reason = "length" if event["stop_type"] == "limit" else "stop"
                yield End(reason, event["stopping_word"] or None, event["timings"]["cache_n"])


def _entries(event: dict[str, Any]) -> list[Entry]:
    entries = [
        Entry(
            entry["id"],
            entry["logprob"],
            [(one["id"], one["token"], one["logprob"]) for one in entry["top_logprobs"]],
        )
        for entry in event["completion_probabilities"]
    ]
    assert [entry.id for entry in entries] == event["tokens"], event
    return entries
