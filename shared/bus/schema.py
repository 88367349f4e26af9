"""The schema of Valkey. Its version is stored beside the data, so that no release reads data that it cannot.

A release raises `VERSION` with a step that describes the change and its needs. Version 1 is data without a stored
version, from before versions existed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.keys import Role
from shared.bus.renames import rename_messages
from shared.bus.spelling import OLDER_EPOCH, OLDER_LEASES
from shared.bus.step4 import apply_step_4
from shared.messages.actions import ACTIONS
from shared.messages.base import ENTRY
from shared.messages.nodes import NODES
from shared.runtime.units import Seconds
from shared.runtime.validation import UNREADABLE

KEY: Final = keys.SCHEMA
UNVERSIONED: Final = 1
_TRACES: Final = (OLDER_EPOCH, keys.epoch(Role.DISPATCHER), ACTIONS.name)
"""Keys of a used store. The first leader leaves one that never expires."""
LONGEST_LEASE_S: Final = 10.0
LONGEST_SILENCE_S: Final = 10.0
"""A CPU manager without a report for this long does not run: five heartbeats, as the leader's `node_lost_s`."""
_STORE_VERSION: Final = """#!lua flags=allow-oom
redis.call('SET', KEYS[1], ARGV[1])
"""
"""While memory is full too: after a step has changed data, the former release must not read it."""
NAMED: Final = 5
"""Most nodes that a message names."""


class WrongSchema(Exception):
    """This release must not use the store. The message is for the person at the terminal."""


class SchemaStep(NamedTuple):
    """Upgrade from the previous version to `version`."""

    version: int
    what: str
    """Description of the change, for people."""
    empty_journal: bool = False
    """The journal must be empty: requests accepted before the step could not be answered after it."""
    apply: Callable[[Redis], Awaitable[None]] | None = None
    """Changes the stored data. It must be safe to repeat."""


STEPS: Final[tuple[SchemaStep, ...]] = (
    SchemaStep(2, "submissions carry an envelope (entries without one are still read); old answers move to Postgres"),
    SchemaStep(3, "kinds and fields of stored messages have standard names", apply=rename_messages),
    SchemaStep(
        4,
        "an outcome has its result as one value; fields of stored hashes have spelt-out names; leases have roles",
        apply=apply_step_4,
    ),
)
VERSION: Final = STEPS[-1].version
"""Version of this release."""


@dataclass(frozen=True)
class Upgrade:
    """Steps of a store's upgrade, and what they need."""

    found: int | None
    """Its version; None: it is empty."""
    version: int
    """Its version after the upgrade."""
    steps: list[SchemaStep] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    """Needs that are not met. While there are any, nothing is changed."""


async def read_version(redis: Redis) -> int | None:
    """Return the version of the stored data; None if the store is empty.

    Raises:
        WrongSchema: the key's value is not a version.
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
    """Let a service start only on data of its own version. An empty store gets this version.

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
    """Return the error for data that a newer release has written."""
    return WrongSchema(
        f"Valkey holds data of schema {found}, and this release of treadle reads schema {version} at most. "
        "Start the newer release that wrote it, or give this one another store"
    )


async def plan_upgrade(redis: Redis, steps: Sequence[SchemaStep] = STEPS) -> Upgrade:
    """Return what an upgrade would do.

    If steps are pending, wait at most 10 s: until the lease of a killed proxy has expired, and until the last report
    of a killed CPU manager is older than `LONGEST_SILENCE_S`.

    Raises:
        WrongSchema: the data is newer.
    """
    version, found = steps[-1].version, await read_version(redis)
    if found is not None and found > version:
        raise newer(found, version)
    pending = [step for step in steps if found is not None and step.version > found]
    needs = await _stopped_services(redis) if pending else []
    waiting = await command(redis, "XLEN", ACTIONS.name)
    needs += [
        f"an empty journal for schema {step.version} ({step.what}): {waiting} requests are unanswered. Start the "
        "release that accepted them, wait for their answers or cancel them, and stop it"
        for step in pending
        if step.empty_journal and waiting
    ]
    return Upgrade(found, version, pending, needs)


async def apply_upgrade(redis: Redis, upgrade: Upgrade) -> None:
    """Apply an upgrade, also while Valkey's memory is full. After a crash the next call continues where this one
    stopped.

    Raises:
        WrongSchema: a need is not met.
    """
    if upgrade.needs:
        raise WrongSchema("the upgrade of Valkey needs " + "; and ".join(upgrade.needs))
    for step in upgrade.steps:
        if step.apply is not None:
            await step.apply(redis)
        await command(redis, "EVAL", _STORE_VERSION, 1, KEY, step.version)
    if upgrade.found is None:
        await command(redis, "SET", KEY, upgrade.version, "NX")


async def _stopped_services(redis: Redis) -> list[str]:
    """Return the needs that running services do not meet."""
    needs: list[str] = []
    dispatches, plans, managers = await asyncio.gather(
        _is_renewed(redis, Role.DISPATCHER), _is_renewed(redis, Role.PLANNER), _running_managers(redis)
    )
    if dispatches:
        needs.append("no running proxy: one holds the dispatching lease. Stop every service of the mesh")
    if plans:
        needs.append("no running planner: one holds the planner's lease. Stop every service of the mesh")
    if managers:
        names = ", ".join(managers[:NAMED]) + (f" and {len(managers) - NAMED} more" if len(managers) > NAMED else "")
        needs.append(
            f"no running CPU manager: {names} reported in the last {LONGEST_SILENCE_S:g} s. "
            "Stop every service of the mesh, on every node"
        )
    return needs


async def _is_renewed(redis: Redis, role: Role) -> bool:
    """Return whether a service of this or an older release renews the role's lease. A killed one's lease expires during
    the wait.
    """
    leases = (keys.leader(role), OLDER_LEASES[role])
    left_ms = max([await command(redis, "PTTL", lease) for lease in leases])  # -2: no such key; -1: it never expires
    if left_ms >= 0:
        await asyncio.sleep(min(left_ms / 1000, LONGEST_LEASE_S) + 0.1)
    return bool(await command(redis, "EXISTS", *leases))


async def _running_managers(redis: Redis) -> list[str]:
    """Return the nodes whose CPU managers report. The last report of a killed manager becomes too old in the wait."""
    ages = await _report_ages(redis)
    if not ages:
        return []
    await asyncio.sleep(LONGEST_SILENCE_S - min(ages.values()) + 0.1)
    return sorted({node for node, _ in await _report_ages(redis)})


class _Report(msgspec.Struct):
    """Fields that every version of a node's report has."""

    kind: str
    node: str
    incarnation: str


_decode_report: Final = msgspec.msgpack.Decoder(_Report).decode


async def _report_ages(redis: Redis) -> dict[tuple[str, str], Seconds]:
    """Return (node, incarnation) -> age of its last report, without silent nodes and those that have sent a Bye."""
    seconds, micros = await command(redis, "TIME")
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    since = now_ms - round(LONGEST_SILENCE_S * 1000)
    ages: dict[tuple[str, str], Seconds] = {}
    for entry, fields in await command(redis, "XRANGE", NODES.name, since, "+"):
        try:
            report = _decode_report(dict(zip(fields[::2], fields[1::2], strict=True))[ENTRY])
        except (KeyError, *UNREADABLE):
            continue  # damaged
        key = (report.node, report.incarnation)
        if report.kind.startswith("bye."):
            ages.pop(key, None)
        else:
            ages[key] = max(0.0, (now_ms - int(entry.partition(b"-")[0])) / 1000)
    return ages
