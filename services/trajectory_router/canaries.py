"""Canaries: calls of one token, which show that a worker makes progress. `/health` of a frozen engine answers 200."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from services.trajectory_router.workers import Workers
from shared.messages.routing import RegisteredWorker
from shared.policy.routing.model import CanaryAnswered
from shared.runtime.background import Background
from shared.runtime.http_streams import StreamClient, Unreachable
from shared.runtime.units import Seconds

_json = msgspec.json.Encoder().encode
HEADERS: Final = [(b"content-type", b"application/json")]
NOT_ENABLED: Final = 501
"""Status of llama.cpp for a route that is switched off: it has passed the engine's queue all the same."""
SERVED: Final = 500
"""A status below this one shows an engine that works: the canary itself may be refused."""


class Canaries:
    """Calls workers for one token, in the background."""

    def __init__(self, engines: StreamClient, workers: Workers, background: Background, *, limit_s: Seconds) -> None:
        self._engines = engines
        self._workers = workers
        self._background = background
        self._limit_s = limit_s

    def __call__(self, worker: str, report: Callable[[CanaryAnswered], None]) -> None:
        """Call a worker, and report the result."""
        self._background.start(self._call(worker, report), name="canary")

    async def _call(self, worker: str, report: Callable[[CanaryAnswered], None]) -> None:
        known = self._workers.by_id.get(worker)
        report(CanaryAnswered(worker, known is not None and await self.answers(known)))

    async def answers(self, worker: RegisteredWorker) -> bool:
        """Return whether a worker answers with a token in time."""
        method, target, body = canary_of(worker)
        try:
            async with asyncio.timeout(self._limit_s):
                headers = HEADERS if body is not None else []
                answer = await self._engines.request(method, worker.url + target, headers, body)
                answer.close()
        except (Unreachable, TimeoutError):
            return False
        return answer.status < SERVED or answer.status == NOT_ENABLED


def canary_of(worker: RegisteredWorker) -> tuple[str, str, bytes | None]:
    """Return method, target and body of a call that shows progress: of one token. llama.cpp would queue it behind its
    running calls, but answers `/slots` between two batches.
    """
    if worker.engine == "llamacpp":
        return "GET", "/slots", None
    if worker.engine == "sglang":
        return "POST", "/generate", _json({"text": "1", "sampling_params": {"max_new_tokens": 1}})
    body: dict[str, object] = {"prompt": "1", "max_tokens": 1}
    if worker.models:
        body["model"] = worker.models[0]
    return "POST", "/v1/completions", _json(body)
