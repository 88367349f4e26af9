"""The preparation of the stores ends with one sentence if it cannot upgrade them."""

import sys
from collections.abc import Iterator

import pytest
import redis

from treadle.stack import prepare


@pytest.fixture
def full_url(redis_url: str) -> Iterator[str]:
    """An empty Valkey at its memory bound."""
    with redis.Redis.from_url(redis_url) as client:
        before = client.config_get("maxmemory")["maxmemory"]
        client.config_set("maxmemory", 1)
        yield redis_url
        client.config_set("maxmemory", before)


@pytest.fixture
def prepared_url(full_url: str, database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TREADLE_REDIS_URL", full_url)
    monkeypatch.setenv("TREADLE_DATABASE_URL", database_url)
    monkeypatch.setattr(sys, "argv", ["prepare"])
    return full_url


def test_at_the_memory_bound_of_valkey_the_message_names_the_setting(prepared_url: str) -> None:
    with pytest.raises(SystemExit, match=r"memory bound is reached\. Raise STACK_VALKEY_MAXMEMORY_MIB"):
        prepare.main()
    with redis.Redis.from_url(prepared_url) as client:
        assert client.get("schema") is None


def test_existing_data_is_upgraded_at_the_memory_bound(prepared_url: str) -> None:
    with redis.Redis.from_url(prepared_url) as client:
        bound = client.config_get("maxmemory")["maxmemory"]
        client.config_set("maxmemory", 0)
        client.incr("leader:epoch")  # as schema 1 has it
        client.config_set("maxmemory", bound)
        prepare.main()
        assert client.get("schema") == b"4"
