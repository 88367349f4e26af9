"""Time limit of an action whose clock can stand still while the action is parked."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from shared.runtime.units import Seconds


class ExecutionLimit:
    """An `asyncio.timeout` that can be held. Enter it in the task that it limits."""

    def __init__(self, seconds: Seconds) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._left: Seconds | None = None
        """Seconds that are left while it is held."""

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._timeout.__aexit__(kind, error, trace)

    def hold(self) -> None:
        """Stop the clock. No effect if the limit is met or left."""
        at = self._timeout.when()
        if at is not None:
            with contextlib.suppress(RuntimeError):
                self._timeout.reschedule(None)
                self._left = at - asyncio.get_running_loop().time()

    def proceed(self) -> None:
        """Let the clock continue."""
        if self._left is not None:
            at, self._left = asyncio.get_running_loop().time() + self._left, None
            with contextlib.suppress(RuntimeError):
                self._timeout.reschedule(at)
