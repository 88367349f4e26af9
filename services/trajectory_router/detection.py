"""Detection of an engine at its registration: its dialect, models, cap of calls and capacity of its KV cache."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

import msgspec

from shared.messages.routing import Engine
from shared.runtime.http_streams import StreamClient, Unreachable
from shared.runtime.streamed_answer import AnswerBroken
from shared.runtime.units import Seconds

MOST_BYTES: Final = 4 << 20
"""Bytes of an answer that are read."""
_CACHE_CONFIG: Final = re.compile(r"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)


class Detected(msgspec.Struct, frozen=True):
    """What an engine reports about itself."""

    engine: Engine
    models: list[str]
    most_calls: int | None = None
    kv_tokens: int | None = None


class Detector:
    """Asks engines for what they are."""

    def __init__(self, engines: StreamClient, *, limit_s: Seconds) -> None:
        """`limit_s`: of each request."""
        self._engines = engines
        self._limit_s = limit_s

    async def detect(self, url: str) -> Detected | None:
        """Return what an engine reports; None if it does not answer."""
        models = await self._get(url + "/v1/models")
        if models is None:
            return None
        names = _models(models)
        info, props, metrics = await asyncio.gather(
            self._get(url + "/get_server_info"), self._get(url + "/props"), self._get(url + "/metrics")
        )
        if (found := _json(info)) is not None and "max_total_num_tokens" in str(found):
            return Detected("sglang", names, _int(found, "max_running_requests"), _int(found, "max_total_num_tokens"))
        if (found := _json(props)) is not None and "default_generation_settings" in found:
            slots = _int(found, "total_slots")
            context = _int(found.get("default_generation_settings", {}), "n_ctx")
            return Detected("llamacpp", names, slots, None if context is None else context * (slots or 1))
        if metrics is not None and b"vllm:" in metrics:
            return Detected("vllm", names, None, _vllm_tokens(metrics.decode("utf-8", "replace")))
        return Detected("openai", names)

    async def _get(self, url: str) -> bytes | None:
        try:
            async with asyncio.timeout(self._limit_s):
                answer = await self._engines.request("GET", url, [], None)
                try:
                    if answer.status != 200:
                        return None
                    data = parts = answer.first
                    while parts and len(data) < MOST_BYTES:
                        parts = await answer.next()
                        data += parts
                    return data
                finally:
                    answer.close()
        except (Unreachable, AnswerBroken, TimeoutError):
            return None


def _json(data: bytes | None) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(data or b"")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found if isinstance(found, dict) else None


def _models(data: bytes) -> list[str]:
    found = _json(data) or {}
    listed = found.get("data")
    names = [one.get("id") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return [name for name in names if isinstance(name, str)]


def _int(found: Any, name: str) -> int | None:
    value = found.get(name) if isinstance(found, dict) else None
    return value if isinstance(value, int) and value > 0 else None


def _vllm_tokens(metrics: str) -> int | None:
    """Tokens of vLLM's KV cache: blocks times their size, from the labels of `vllm:cache_config_info`."""
    labels = _CACHE_CONFIG.search(metrics)
    if labels is None:
        return None
    values = dict(re.findall(r'(\w+)="([^"]*)"', labels[1]))
    try:
        return int(values["num_gpu_blocks"]) * int(values["block_size"])
    except (KeyError, ValueError):
        return None
