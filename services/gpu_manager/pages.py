"""Publication of a node's page: at each change, and with each heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from redis.asyncio import Redis

from shared.bus.connection import TRANSIENT
from shared.bus.model_services import publish_page, remove_page
from shared.messages.model_services import ServingPage
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)

PAUSE_S: Final[Seconds] = 0.1
"""Least time between two publications: a swap changes several states."""
REMOVE_S: Final[Seconds] = 2.0


class PagePublisher:
    """Publishes the page of one node. Without Valkey, the next publication makes up for a lost one."""

    def __init__(self, redis: Redis, page: Callable[[], ServingPage], every_s: Seconds) -> None:
        self._redis = redis
        self._page = page
        self._every_s = every_s
        self._due = asyncio.Event()

    def changed(self) -> None:
        """Publish soon."""
        self._due.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            try:
                await publish_page(self._redis, self._page())
            except TRANSIENT as error:
                _log.warning("page_not_published", error=str(error))
            await asyncio.sleep(PAUSE_S)
            try:
                async with asyncio.timeout(self._every_s):
                    await self._due.wait()
            except TimeoutError:
                continue
            self._due.clear()

    async def remove(self, node: str) -> None:
        """Remove the page, because the node stops. Bounded: a page that stays expires."""
        try:
            async with asyncio.timeout(REMOVE_S):
                await remove_page(self._redis, node)
        except (*TRANSIENT, TimeoutError) as error:
            _log.warning("page_not_removed", error=str(error))
