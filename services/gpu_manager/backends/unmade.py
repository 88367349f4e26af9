"""Backend of an engine whose own backend could not be made, by a bug of ours (ADR 0093).

Laws (tests/services/gpu_manager/test_serving.py):
  - each call fails with the error of the making, so the engine alone fails, by the ways of all other errors;
  - nothing was started, so a stop succeeds. The next load makes the backend again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from services.gpu_manager.backends.protocol import Capabilities, Footprint, Level, Residency

_FLAGS: Final = Capabilities(("cold",), False, False, False, False)


@dataclass(frozen=True, slots=True)
class UnmadeBackend:
    """One engine without a backend."""

    error: Exception
    url: str = ""
    flags: Capabilities = _FLAGS

    async def prepare(self) -> None:
        """Fail."""
        raise self.error

    async def evict(self, level: Level) -> None:
        """Fail."""
        del level
        raise self.error

    async def restore(self) -> None:
        """Fail."""
        raise self.error

    async def residency(self) -> Residency:
        """Fail: a given engine may run."""
        raise self.error

    async def footprint(self) -> Footprint:
        """Return that nothing is measured."""
        return Footprint(None, None)

    async def canary(self) -> None:
        """Fail."""
        raise self.error

    async def abort(self) -> None:
        """Fail."""
        raise self.error

    async def stop(self) -> None:
        """Do nothing."""

    async def ended(self) -> str:
        """Wait forever: there is no process."""
        await asyncio.Event().wait()
        return ""
