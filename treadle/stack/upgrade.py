"""Upgrade of both stores to this release: Alembic's migrations for Postgres, the schema's steps for Valkey."""

from shared.bus.connection import connect, with_retries
from shared.bus.schema import Upgrade, apply_upgrade, plan_upgrade
from shared.store.migrate import revisions, upgrade

RETRY_LIMIT_S = 10.0


async def upgrade_stores(redis_url: str, database_url: str, *, check: bool = False) -> tuple[list[str], bool]:
    """Upgrade older stores. Return (a line for each store, whether anything was or would be changed).

    Both are read before either is changed.

    Args:
        redis_url: of Valkey.
        database_url: of Postgres.
        check: change nothing.
    Raises:
        WrongSchema, NewerDatabase: a store is newer than this release, or an upgrade's need is not met.
        Unavailable: Valkey does not answer, or a service publishes during the upgrade.
        Overloaded: Valkey's memory bound is reached. A repeat continues.
    """
    async with connect(redis_url, name="upgrade") as redis:
        planned = await with_retries(lambda: plan_upgrade(redis), what="reading the schema", limit_s=RETRY_LIMIT_S)
        current, head = await revisions(database_url)
        lines = [*_valkey(planned), _postgres(current, head)]
        if not check:
            await with_retries(lambda: apply_upgrade(redis, planned), what="upgrading", limit_s=RETRY_LIMIT_S)
            await upgrade(database_url)
    return lines, bool(planned.steps or planned.needs) or current not in (None, head)


def _valkey(planned: Upgrade) -> list[str]:
    if planned.found is None:
        return [f"Valkey: empty, becomes schema {planned.version}"]
    if not planned.steps:
        return [f"Valkey: schema {planned.version}, as this release has it"]
    lines = [f"Valkey: schema {planned.found} becomes {planned.version}"]
    lines += [f"    {step.version}: {step.what}" for step in planned.steps]
    return lines + ([f"    needs {need}" for need in planned.needs] or ["    needs nothing"])


def _postgres(current: str | None, head: str) -> str:
    if current is None:
        return f"Postgres: empty, becomes revision {head}"
    return (
        f"Postgres: revision {head}, as this release has it"
        if current == head
        else f"Postgres: revision {current} becomes {head}"
    )
