"""Ids: the same request in the same place has the same id, which cannot be made without the store's key."""

from __future__ import annotations

import re
from hashlib import blake2b

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from redis.asyncio import Redis

from services.proxy.records.ids import KEY_BYTES, Ids, random_id
from shared.bus.connection import ValkeyClock, command
from shared.bus.identity import IdKey

Scope = tuple[str, str, str, str]
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,7}", fullmatch=True)
scopes = st.tuples(names, st.just("") | names, st.just("") | names, st.text(min_size=1, max_size=20))
"""Tenant, task, batch, request id."""

UNREACHABLE = "redis://127.0.0.1:1"


def id_of(scope: Scope, key: bytes = b"k" * KEY_BYTES) -> str:
    """Id in a fresh store, where no id needs a round trip."""
    making = Ids(Redis.from_url(UNREACHABLE), ValkeyClock(0.0), IdKey(key, 0.0)).of(*scope)
    try:
        making.send(None)
    except StopIteration as end:
        return str(end.value)
    raise AssertionError("it asked the store")


@given(scopes)
def test_the_same_request_in_the_same_place_has_the_same_id(scope: Scope) -> None:
    assert id_of(scope) == id_of(scope)
    assert id_of(scope) != id_of(scope, b"l" * KEY_BYTES), "another store"


@given(scopes, scopes)
def test_another_request_or_another_place_has_another_id(one: Scope, other: Scope) -> None:
    assume(one != other)
    assert id_of(one) != id_of(other)


@given(scopes, st.integers(0, 3), st.integers(0, 3))
def test_parts_of_a_place_cannot_be_moved_into_each_other(scope: Scope, source: int, target: int) -> None:
    moved = list(scope)
    moved[target] = scope[source] + scope[target]
    moved[source] = "x" if source == 3 else ""
    assume(tuple(moved) != scope)
    assert id_of((moved[0], moved[1], moved[2], moved[3])) != id_of(scope)


def test_requests_without_an_id_are_all_different() -> None:
    assert len({random_id() for _ in range(1000)}) == 1000


@given(scopes)
def test_every_id_is_a_name_the_routes_take(scope: Scope) -> None:
    for name in (id_of(scope), random_id()):
        assert re.fullmatch(r"[a-z0-9]{8,32}", name)


def older(place: str) -> str:
    """Id of an older version, without a key."""
    scope = f"ada\x00\x00{place}\x00step-1"
    return "r" + blake2b(scope.encode(), digest_size=12).hexdigest()


async def test_the_key_is_created_once(valkey: Redis) -> None:
    clock = ValkeyClock(0.0)
    one, other = await Ids.load(valkey, clock), await Ids.load(valkey, clock)
    assert await one.of("ada", "", "", "step-1") == await other.of("ada", "", "", "step-1") != older("")


@pytest.mark.parametrize("place", ["", "t1", "b1"])
async def test_in_a_store_of_an_older_version_its_ids_are_found(valkey: Redis, place: str) -> None:
    """Found by hash; in a trajectory by name after the answer expired; in a batch after it is archived."""
    await command(valkey, "SET", "epoch:dispatcher", 3)
    ids = await Ids.load(valkey, await ValkeyClock.measure(valkey))
    fresh = await ids.of("ada", "", place, "step-1")
    assert fresh != older(place)
    if place == "b1":
        await command(valkey, "HSET", "archived:b1", older(place), "x")
    elif place:
        await command(valkey, "SADD", "acted:t1", f"action:{older(place)}")
    else:
        await command(valkey, "HSET", f"action:{older(place)}", "d", "x")
    assert await ids.of("ada", "", place, "step-1") == older(place)
    assert await ids.of("ada", "", place, "step-2") not in (fresh, older(place))
