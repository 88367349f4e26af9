"""Calls of one server: repeated while it is away, decoded into a type."""

from __future__ import annotations

import random
from typing import TypeVar

import aiohttp
import msgspec

from treadle.client.errors import Unexpected, error_of
from treadle.client.http import checked_url, open_session
from treadle.client.patience import Patience, repeating

S = TypeVar("S")

JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}


class Calls:
    """One proxy, seen by one caller. The session is opened by the first call, in its event loop."""

    def __init__(
        self, url: str, tenant: str | None, patience: Patience, silence_s: float, rng: random.Random | None = None
    ) -> None:
        self.url = checked_url(url)
        self.patience = patience
        self.rng = rng or random.Random()
        self._headers = {"treadle-tenant": tenant} if tenant else None
        self.silence_s = silence_s
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """The connections; opened now if they are not."""
        if self._session is None:
            self._session = open_session(self.url, headers=self._headers, silence_s=self.silence_s)
        return self._session

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def read(
        self,
        answer: type[S],
        method: str,
        path: str,
        body: object = None,
        *,
        query: dict[str, str] | None = None,
        patience: Patience | None = None,
    ) -> S:
        """Make a call; its answer, decoded.

        Raises:
            TreadleError: the mesh answered an error, or did not answer for as long as patience lasts.
            Unexpected: the answer is not an `answer`.
        """
        sent = None if body is None else msgspec.json.encode(body)
        reply = await self.send(method, path, sent, JSON, query, patience)
        try:
            return msgspec.json.decode(reply, type=answer)
        except msgspec.MsgspecError as error:
            what = f"{self.url}{path} answered what is no {answer.__name__}: is it the address of Treadle's proxy?"
            raise Unexpected(f"{what} ({error})") from error

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        query: dict[str, str] | None = None,
        patience: Patience | None = None,
    ) -> bytes:
        """Make a call; the body of its answer. It is repeated, so it must be harmless to repeat."""

        async def attempt() -> bytes:
            sent = headers if body is not None else None
            async with self.session.request(method, path, data=body, headers=sent, params=query) as reply:
                answer = await reply.read()
                if reply.status >= 400:
                    raise error_of(reply.status, answer, str(reply.url), reply.headers.get("retry-after"))
                return answer

        return await repeating(attempt, patience or self.patience, f"{method} {self.url}{path}", self.rng)
