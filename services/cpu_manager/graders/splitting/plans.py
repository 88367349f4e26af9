"""Cache of plans by text: many samples are graded by the same tests."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from services.cpu_manager.graders.splitting.plan import Plan
from services.cpu_manager.graders.splitting.reading import MOST_CHARS, split

MOST_PLANS: Final = 512
_MOST_KEPT_CHARS: Final = 4 << 20
_INLINE_CHARS: Final = 256
"""Shorter texts are split in the loop: 0.1 ms as a rule, which is what a thread costs, and some 30 ms at worst."""


class Plans:
    """The least recently used plans are dropped beyond MOST_PLANS texts or 4 Mi characters."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Plan | None] = OrderedDict()
        self._chars = 0

    async def get(self, text: str) -> Plan | None:
        """Return the plan of a text of tests; None if it has none."""
        if len(text) > MOST_CHARS:
            return None
        if text in self._kept:
            self._kept.move_to_end(text)
            return self._kept[text]
        plan = split(text) if len(text) <= _INLINE_CHARS else await asyncio.to_thread(split, text)
        if text not in self._kept:
            self._kept[text] = plan
            self._chars += len(text)
            while len(self._kept) > MOST_PLANS or self._chars > _MOST_KEPT_CHARS:
                oldest, _ = self._kept.popitem(last=False)
                self._chars -= len(oldest)
        return plan
