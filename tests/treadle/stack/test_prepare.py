"""The preparation of the stores ends with one sentence if it cannot upgrade them."""

import sys
from collections.abc import Iterator

import pytest
import redis

from treadle.stack import prepare


@pytest.fixture
def full_url(redis_url: str) -> Iterator[str]:
    """A Valkey with data of schema 1 at its memory bound."""
    with redis.Redis.from_url(redis_url) as client:
        client.incr("leader:epoch")
        before = client.config_get("maxmemory")["maxmemory"]
        client.config_set("maxmemory", 1)
        yield redis_url
        client.config_set("maxmemory", before)


def test_at_the_memory_bound_of_valkey_the_message_names_the_setting(
    full_url: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_REDIS_URL", full_url)
    monkeypatch.setenv("TREADLE_DATABASE_URL", database_url)
    monkeypatch.setattr(sys, "argv", ["prepare"])
    with pytest.raises(SystemExit, match=r"memory bound is reached\. Raise STACK_VALKEY_MAXMEMORY_MIB"):
        prepare.main()
    with redis.Redis.from_url(full_url) as client:
        assert client.get("schema") is None
