"""Every function touches only the keys that its caller passes. The fixture `valkey` checks each call."""

from __future__ import annotations

import re

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from shared.bus import functions
from shared.bus.connection import command
from tests.shared.bus.checked_library import DERIVED, checked_source
from tests.shared.bus.journal import submission


async def test_a_key_that_was_not_passed_is_an_error(valkey: Redis) -> None:
    broken = checked_source().replace("redis.call('XLEN', keys[1])", "redis.call('XLEN', 'actions2')")
    await command(valkey, "FUNCTION", "LOAD", "REPLACE", broken)
    with pytest.raises(ResponseError, match="KEY actions2 of journal_actions_v2 was not passed"):
        await functions.journal_actions(valkey, [submission("a1")], max_journal=9)


def test_no_function_formats_a_key_except_the_derived_ones() -> None:
    formatted = re.findall(r"'([a-z]+:)' \.\. ", functions.source())
    assert sorted(set(formatted) - {"count:", "why:", "used:", "artifact:"}) == sorted(
        {each for many in DERIVED.values() for each in many}
    )
    quoted = re.findall(r"redis\.call\('[A-Z]+', '([^']*)'", functions.source())
    assert {each for each in quoted if each} <= {"batch:", "trajectory:", "trace:"}


async def test_every_function_has_the_version_of_its_arguments_in_its_name(valkey: Redis) -> None:
    """Otherwise a replica of another version would find it after its arguments have changed."""
    ((*_, loaded),) = await command(valkey, "FUNCTION", "LIST", "LIBRARYNAME", "treadle")
    names = [dict(zip(one[::2], one[1::2], strict=True))[b"name"].decode() for one in loaded]
    assert len(names) > 30
    assert [name for name in names if not re.search("_v[0-9]+$", name)] == []


FORMER = (
    "lead hold_lease resign journal_actions answer_actions send_grants advance_stages discard publish_backlog publish "
    "open_batch progress end_batch id_key mesh_identity cancel open_trajectory close_trajectory "
    "record_environment_ends expire_trajectories archive_results archive_actions expire_kept release_batch"
)
"""Functions of schema 3. They took no keys."""


@pytest.mark.parametrize("name", FORMER.split())
async def test_a_replica_of_the_former_release_writes_nothing(valkey: Redis, name: str) -> None:
    with pytest.raises(ResponseError, match="Function not found"):
        await command(valkey, "FCALL", name, 0, *["1"] * 8)
    assert await command(valkey, "DBSIZE") == 0
