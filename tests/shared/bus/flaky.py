"""A connection that fails on schedule: before the command has any effect, or after all of it."""

from __future__ import annotations

import re
from typing import Any, Literal

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as Broken

When = Literal["before", "after"]


class Flaky(Redis):
    """Forwards commands to a real client; the next ones fail as scheduled."""

    def __init__(self, real: Redis) -> None:
        super().__init__()
        self._real = real
        self.failures: list[When | None] = []
        """Failures of the next commands, in order; None: the command works."""
        self.sent: list[str] = []
        """Commands (functions by their name without a number) that have had their effect."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        failure = self.failures.pop(0) if self.failures else None
        if failure == "before":
            raise Broken("cut before it arrived")
        reply = await self._real.execute_command(*args, **options)  # type: ignore[no-untyped-call]
        self.sent.append(re.sub(r"_v\d+$", "", str(args[1])) if args[0] == "FCALL" else str(args[0]))
        if failure == "after":
            raise Broken("cut before its reply arrived")
        return reply
