"""One holder's use of an engine, and its refusal."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf

from shared.runtime.units import Seconds


class NotServed(Exception):
    """An action gets no engine. The text says why."""

    def __init__(self, reason: str, retry_in_s: Seconds | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_in_s = retry_in_s
        """Seconds before which a retry is useless; None: it is useless before something is changed."""


@dataclass(slots=True)
class EngineUse:
    """One holder's use of an engine."""

    admitted: asyncio.Future[None]
    refused: asyncio.Future[NotServed]
    """Done if the engine is taken away."""
    ok: bool = False
    """The engine has served it. Set by the holder."""
    ends_s: Seconds = inf
    """Time by which the engine has to answer. Set by the holder."""
