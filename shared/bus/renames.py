"""Step 3 of the schema: kinds and fields of stored messages get standard names.

`rewrite_stream` serves later steps, too. Both also work while Valkey's memory is full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import WatchError

from shared.bus.connection import command
from shared.messages.actions import ACTIONS
from shared.messages.base import ENTRY
from shared.messages.nodes import NODES
from shared.messages.outcomes import OUTCOMES
from shared.runtime.errors import Unavailable
from shared.runtime.validation import UNREADABLE

READ_AT_ONCE = 512
REWRITES = 10
"""Most attempts to rewrite a stream. Only a service that still runs makes a second one necessary."""
KINDS = {
    "action.cancel-asked.v1": "action.cancel-requested.v1",
    "trajectory.close-asked.v1": "trajectory.close-requested.v1",
    "environment.made.v1": "environment.created.v1",
}
FIELDS = {
    "hello.v1": {"lines_up": "prefetches"},
    "finished.v1": {"environment_stands": "environment_exists"},
    "images-changed.v1": {"here": "added", "gone": "removed"},
}
"""Kind -> renamed fields."""

Change = Callable[[dict[str, Any]], dict[str, Any]]
"""Changes one stored message; returns it as it is if there is nothing to change. It must be safe to repeat."""

_APPEND = """#!lua flags=allow-oom
redis.call('XADD', KEYS[1], unpack(ARGV))
"""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


async def rename_messages(redis: Redis) -> None:
    """Rename stored messages of schema 2 to schema 3. Safe to repeat: a renamed message is not changed again.

    Nodes' reports keep their ids. A renamed request of the journal moves to its end: the leader acts on it, in any
    order, and deletes it. Submissions are not read.

    Raises:
        Unavailable: a service publishes during every attempt to rewrite a stream.
    """
    for topic in (NODES, OUTCOMES):
        await rewrite_stream(redis, topic.name, _renamed)
    await _move_requests(redis)


async def rewrite_stream(redis: Redis, stream: str, change: Change) -> None:
    """Replace a bounded stream by its changed entries with the same ids, again if an entry is published meanwhile.

    Raises:
        Unavailable: entries are published during every attempt.
    """
    for _ in range(REWRITES):
        try:
            await _rewrite_once(redis, stream, change)
        except WatchError:
            continue
        return
    raise Unavailable(
        what=f"the stream {stream!r} changes during the upgrade, so a service runs. Stop every service of the mesh"
    )


async def _rewrite_once(redis: Redis, stream: str, change: Change) -> None:
    """Read a stream and replace it by its changed entries, in one transaction.

    Raises:
        WatchError: the stream has changed since the read. Nothing is replaced.
    """
    async with redis.pipeline(transaction=True) as pipe:
        await pipe.watch(stream)
        rows = await command(pipe, "XRANGE", stream, "-", "+")
        changed = [(entry, _changed(fields, change) or fields) for entry, fields in rows]
        pipe.multi()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
        pipe.delete(stream)
        for entry, fields in changed:
            pipe.execute_command("EVAL", _APPEND, 1, stream, entry, *fields)
        if changed:
            await pipe.execute()


async def _move_requests(redis: Redis) -> None:
    """Append renamed requests to the journal and delete the old ones, each chunk in one transaction."""
    after = "-"
    while rows := await command(redis, "XRANGE", ACTIONS.name, after, "+", "COUNT", READ_AT_ONCE):
        pipe = redis.pipeline(transaction=True)
        for entry, fields in rows:
            if (renamed := _changed(fields, _renamed)) is not None:
                pipe.execute_command("EVAL", _APPEND, 1, ACTIONS.name, "*", *renamed)
                pipe.execute_command("XDEL", ACTIONS.name, entry)
        if len(pipe):
            await pipe.execute()
        after = f"({rows[-1][0].decode()}"


def _changed(fields: list[bytes], change: Change) -> list[bytes] | None:
    """Return the fields of a stream entry with its message changed; None if nothing in it changes."""
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        message = _decode(named[ENTRY])
    except (KeyError, *UNREADABLE):
        return None  # it was unreadable before, too
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        return None
    new = change(message)
    if new == message:
        return None
    return [part for pair in (named | {ENTRY: _encode(new)}).items() for part in pair]


def _renamed(message: dict[str, Any]) -> dict[str, Any]:
    kind = message["kind"]
    renames: Mapping[str, str] = FIELDS.get(kind, {})
    new = {renames.get(name, name): value for name, value in message.items()}
    return new | {"kind": KINDS.get(kind, kind)}
