"""Count of an external service: the calls that it sees at once, and the bursts in which they arrive."""

from __future__ import annotations

import asyncio
import time

from aiohttp import web


class CallCount:
    """Handler of a service whose calls take `call_s` seconds. It never rejects: the test judges what it has counted.

    A call continues after the death of its caller, as at a real provider.
    """

    def __init__(self, call_s: float) -> None:
        self._call_s = call_s
        self.paths: list[str] = []
        """Path of each call, by arrival."""
        self.inside = self.highest = 0
        """Calls under way, now and at most."""
        self._arrivals: list[float] = []

    async def answer(self, request: web.Request) -> web.Response:
        """Count a call, and answer with its number."""
        number = len(self.paths)
        self.paths.append(request.path)
        self._arrivals.append(time.monotonic())
        self.inside += 1
        self.highest = max(self.highest, self.inside)
        try:
            await asyncio.sleep(self._call_s)
        finally:
            self.inside -= 1
        return web.json_response({"call": number})

    @property
    def idle_s(self) -> float:
        """Seconds since the last arrival."""
        return time.monotonic() - self._arrivals[-1]

    def burst(self, per_s: float) -> float:
        """Return the least burst of a rate that allows the arrivals: max over all windows of calls - per_s * window.

        A rate is obeyed by its grants. A window of arrivals may also have the calls that were granted before it, and
        they still hold their slots of a concurrency at its begin. So under both limits at most the rate's burst and
        the concurrency arrive, beside the refill.
        """
        most, least = 0.0, float("inf")
        for number, arrived in enumerate(self._arrivals):
            least = min(least, number - per_s * arrived)
            most = max(most, number + 1 - per_s * arrived - least)
        return most
