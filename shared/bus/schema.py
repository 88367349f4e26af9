"""The schema of Valkey: its version stands beside the data, so that no release reads what it cannot.

A release raises `VERSION` with a step that says what changes and what it needs. Version 1 is data without a version: it
was written before there was one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from redis.asyncio import Redis

from shared.bus.connection import command
from shared.messages.actions import ACTIONS

KEY: Final = "schema"
UNVERSIONED: Final = 1
_TRACES: Final = ("leader:epoch", ACTIONS.name)
"""Keys of a store that has been used: the first leader leaves one for ever."""
LONGEST_LEASE_S: Final = 10.0


class WrongSchema(Exception):
    """This release must not use the store. The message is for the person at the terminal."""


class Step(NamedTuple):
    """From the version before to `version`."""

    version: int
    what: str
    """What changes, for people."""
    empty_journal: bool = False
    """It needs an empty journal: requests that were accepted before could not be answered after it."""
    apply: Callable[[Redis], Awaitable[None]] | None = None
    """Changes what is stored; must be harmless to repeat."""


STEPS: Final[tuple[Step, ...]] = (
    Step(2, "submissions carry an envelope (entries without one are still read); old answers move to Postgres"),
)
VERSION: Final = STEPS[-1].version
"""Of this release."""


@dataclass(frozen=True)
class Upgrade:
    """What is to be done to a store, and what has to be true before."""

    found: int | None
    """Its version; None: it is empty."""
    version: int
    """What it will be."""
    steps: list[Step] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    """What is not true yet; nothing is changed while there is any."""


async def read_version(redis: Redis) -> int | None:
    """The version of what is stored; None where nothing is.

    Raises:
        WrongSchema: the key holds no version.
    """
    raw: bytes | None = await command(redis, "GET", KEY)
    if raw is None:
        return UNVERSIONED if await command(redis, "EXISTS", *_TRACES) else None
    if not raw.isdigit():
        raise WrongSchema(
            f"the key {KEY!r} of Valkey holds {raw[:40]!r}, not a version: another program uses this store"
        )
    return int(raw)


async def check_schema(redis: Redis, version: int = VERSION) -> None:
    """Let a service start only on data of its own version; an empty store gets it.

    Raises:
        WrongSchema: the data is newer or older.
    """
    found = await read_version(redis)
    if found is None:
        await command(redis, "SET", KEY, version, "NX")
        found = await read_version(redis)
    if found is not None and found > version:
        raise newer(found, version)
    if found != version:
        raise WrongSchema(
            f"Valkey holds data of schema {found}, and this release of treadle uses schema {version}. "
            "Run: treadle upgrade (in containers: python -m treadle.stack.prepare)"
        )


def newer(found: int, version: int) -> WrongSchema:
    """The refusal of data that a newer release has written."""
    return WrongSchema(
        f"Valkey holds data of schema {found}, and this release of treadle reads schema {version} at most. "
        "Start the newer release that wrote it, or give this one another store"
    )


async def plan_upgrade(redis: Redis, steps: Sequence[Step] = STEPS) -> Upgrade:
    """What an upgrade would do. Waits for the lease of a proxy that was killed, 10 s at most.

    Raises:
        WrongSchema: the data is newer.
    """
    version, found = steps[-1].version, await read_version(redis)
    if found is not None and found > version:
        raise newer(found, version)
    pending = [step for step in steps if found is not None and step.version > found]
    needs: list[str] = []
    if pending and await _leads(redis):
        needs.append("no running proxy: one holds the dispatching lease. Stop every service of the mesh")
    waiting = await command(redis, "XLEN", ACTIONS.name)
    needs += [
        f"an empty journal for schema {step.version} ({step.what}): {waiting} requests are unanswered. Start the "
        "release that accepted them, wait for their answers or cancel them, and stop it"
        for step in pending
        if step.empty_journal and waiting
    ]
    return Upgrade(found, version, pending, needs)


async def apply_upgrade(redis: Redis, upgrade: Upgrade) -> None:
    """Do it; after a crash the next call goes on where this one stopped.

    Raises:
        WrongSchema: it needs something that is not true.
    """
    if upgrade.needs:
        raise WrongSchema("the upgrade of Valkey needs " + "; and ".join(upgrade.needs))
    for step in upgrade.steps:
        if step.apply is not None:
            await step.apply(redis)
        await command(redis, "SET", KEY, step.version)
    if upgrade.found is None:
        await command(redis, "SET", KEY, upgrade.version, "NX")


async def _leads(redis: Redis) -> bool:
    """Whether a proxy renews the lease; that of one which was killed lapses."""
    left_ms = await command(redis, "PTTL", "leader")
    if left_ms < 0:
        return bool(left_ms == -1)  # -2: no such key
    await asyncio.sleep(min(left_ms / 1000, LONGEST_LEASE_S) + 0.1)
    return bool(await command(redis, "EXISTS", "leader"))
