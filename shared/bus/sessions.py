"""Shell sessions of SWE-ReX runtimes, by trajectory: names, closing requests, and output of timed-out commands."""

from __future__ import annotations

from dataclasses import dataclass

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command


@dataclass(frozen=True, slots=True)
class ShellSessions:
    """The sessions of one trajectory. A token names the request that created one. Every call is safe to repeat."""

    redis: Redis
    trajectory: str

    async def count(self) -> int:
        """Return the number of sessions."""
        return int(await command(self.redis, "HLEN", keys.swerex(self.trajectory)))

    async def claim(self, session: str, token: str, keep_s: int) -> bool:
        """Record a session for this request. False: another request has it."""
        key = keys.swerex(self.trajectory)
        is_new = await command(self.redis, "HSETNX", key, session, token)
        await command(self.redis, "EXPIRE", key, keep_s)
        return bool(is_new) or await self.token(session) == token

    async def token(self, session: str) -> str | None:
        """Return the token of the request that created the session; None if there is no session."""
        found: bytes | None = await command(self.redis, "HGET", keys.swerex(self.trajectory), session)
        return None if found is None else found.decode()

    async def drop(self, session: str) -> None:
        """Remove a session."""
        await command(self.redis, "HDEL", keys.swerex(self.trajectory), session)

    async def closes(self, token: str) -> str | None:
        """Return which session (its token) the closing request with this token closes; None: it is new."""
        found: bytes | None = await command(self.redis, "HGET", keys.swerex_closing(self.trajectory), token)
        return None if found is None else found.decode()

    async def note_closing(self, token: str, closes: str, keep_s: int) -> None:
        """Record what a closing request closes, for its repeats."""
        key = keys.swerex_closing(self.trajectory)
        await command(self.redis, "HSET", key, token, closes)
        await command(self.redis, "EXPIRE", key, keep_s)

    async def keep_output(self, session: str, output: bytes, keep_s: int) -> None:
        """Store the output of a command that timed out."""
        key = keys.swerex_partial(self.trajectory)
        await command(self.redis, "HSET", key, session, output)
        await command(self.redis, "EXPIRE", key, keep_s)

    async def output(self, session: str) -> bytes | None:
        """Return the stored output of a session; None if there is none."""
        found: bytes | None = await command(self.redis, "HGET", keys.swerex_partial(self.trajectory), session)
        return found

    async def drop_output(self, session: str) -> None:
        """Delete the stored output of a session."""
        await command(self.redis, "HDEL", keys.swerex_partial(self.trajectory), session)
