"""Spelt-out names in stored hashes and keys, for step 4 of the schema."""

from __future__ import annotations

from collections.abc import Mapping

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.keys import Role

READ_AT_ONCE = 512
"""Keys of one SCAN and of one script: 2 to 4 ms of Valkey."""
FIELDS: Mapping[str, Mapping[str, str]] = {
    "action:": {
        "d": "digest", "e": "entry", "b": "batch", "t": "trajectory", "g": "grant", "s": "stage", "c": "carried",
        "a": "answer", "r": "result", "m": "archived",
    },
    "trajectory:": {"n": "node"},
}  # fmt: skip
"""Prefix of hashes -> renamed fields."""
OLDER_EPOCH = "leader:epoch"
OLDER_LEASES: Mapping[Role, str] = {Role.DISPATCHER: "leader", Role.PLANNER: "planner:lease"}
"""Keys of leases before schema 4. They expire by themselves."""

_RENAME = """#!lua flags=allow-oom
for _, key in ipairs(KEYS) do
  for i = 1, #ARGV, 2 do
    local value = redis.call('HGET', key, ARGV[i])
    if value then
      redis.call('HSET', key, ARGV[i + 1], value)
      redis.call('HDEL', key, ARGV[i])
    end
  end
end
"""


async def spell_out(redis: Redis) -> None:
    """Rename fields and keys of schema 3 to schema 4. Safe to repeat: a renamed field is not changed again.

    One pass over all keys in chunks, also while Valkey's memory is full. Hashes keep their lifetimes. Entries of
    streams are not changed, because readers know both names of their fields.
    """
    if await command(redis, "EXISTS", OLDER_EPOCH):
        await command(redis, "RENAME", OLDER_EPOCH, keys.epoch(Role.DISPATCHER))
    cursor = b"0"
    while True:
        cursor, found = await command(redis, "SCAN", cursor, "COUNT", READ_AT_ONCE)
        for prefix, renames in FIELDS.items():
            hashes = [key for key in found if key.startswith(prefix.encode())]
            if hashes:
                names = (name for pair in renames.items() for name in pair)
                await command(redis, "EVAL", _RENAME, len(hashes), *hashes, *names)
        if cursor == b"0":
            return
