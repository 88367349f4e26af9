"""The step between the servers' start and the services': ``python -m treadle.stack.prepare [--foreign-redis]``.

Upgrades both stores to this release (`treadle.stack.upgrade`) and warns of what a foreign Redis would lose. It is its
own process, so that the supervisor stays small and a failing migration does not stop it.
"""

import argparse
import asyncio
import sys

import redis.asyncio
from redis.exceptions import RedisError

from shared.bus.schema import WrongSchema
from shared.runtime.errors import Overloaded, Unavailable
from shared.runtime.settings import TreadleSettings, WrongSetting, load
from shared.store.migrate import NewerDatabase
from treadle.stack.upgrade import upgrade_stores
from treadle.stack.valkey import durability_warnings

REDIS_TIMEOUT_S = 10.0


async def check_redis(url: str) -> list[str]:
    """Return warnings about a Redis that is not ours.

    Raises:
        RedisError, TimeoutError: it does not answer.
    """
    async with asyncio.timeout(REDIS_TIMEOUT_S), redis.asyncio.Redis.from_url(url) as client:
        await client.ping()
        return await durability_warnings(client)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m treadle.stack.prepare", description=__doc__)
    parser.add_argument("--foreign-redis", action="store_true", help="check the durability of TREADLE_REDIS_URL")
    parser.add_argument("--report", action="store_true", help="print the state of both stores, also where it stays")
    parser.add_argument("--check", action="store_true", help="upgrade nothing; with --report")
    chosen = parser.parse_args()
    try:
        settings = load(TreadleSettings)
    except WrongSetting as error:
        sys.exit(str(error))
    if chosen.foreign_redis:
        try:
            warnings = asyncio.run(check_redis(settings.redis_url))
        except (RedisError, TimeoutError, OSError) as error:
            sys.exit(f"TREADLE_REDIS_URL does not answer: {error!r}. Start that server, or unset it to use our own.")
        for warning in warnings:
            print(f"WARNING: TREADLE_REDIS_URL would lose accepted work: {warning}", flush=True)  # noqa: T201
    try:
        lines, changed = asyncio.run(upgrade_stores(settings.redis_url, settings.database_url, check=chosen.check))
    except Overloaded as error:
        sys.exit(
            f"the upgrade needs memory: {error.what}. Raise STACK_VALKEY_MAXMEMORY_MIB (maxmemory of a foreign Redis) "
            "and start again; the upgrade continues"
        )
    except (WrongSchema, NewerDatabase, Unavailable) as error:
        sys.exit(str(error))
    for line in lines if changed or chosen.report else ():
        print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
