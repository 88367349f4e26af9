"""The embedded Valkey keeps acknowledged writes; a warning names a foreign server's settings that do not."""

from pathlib import Path

import redis
import redis.asyncio
from redis.exceptions import NoPermissionError

from treadle.stack.home import open_home
from treadle.stack.valkey import durability_warnings, valkey_launch, valkey_socket
from treadle.testing.servers import running, running_valkey


async def test_our_own_server_gives_no_warning(stack_home: Path) -> None:
    with running_valkey(stack_home) as url:
        async with redis.asyncio.Redis.from_url(url) as client:
            assert await durability_warnings(client) == []


async def test_each_setting_that_loses_data_is_reported(stack_home: Path) -> None:
    with running_valkey(stack_home) as url:
        async with redis.asyncio.Redis.from_url(url, decode_responses=True) as client:
            for name, value in (("appendonly", "no"), ("appendfsync", "everysec"), ("maxmemory", "0")):
                await client.config_set(name, value)
            await client.config_set("maxmemory-policy", "allkeys-lru")
            warnings = await durability_warnings(client)
    assert [warning.split()[0] for warning in warnings] == [
        "appendonly",
        "appendfsync",
        "maxmemory-policy",
        "maxmemory",
    ]
    assert all("Fix: CONFIG SET" in warning for warning in warnings)


async def test_a_server_that_hides_its_configuration_gets_one_warning() -> None:
    class RestrictedValkey:
        async def config_get(self, pattern: str, /) -> dict[str, str]:
            raise NoPermissionError("no permissions to run the 'config|get' command")

    warnings = await durability_warnings(RestrictedValkey())
    assert len(warnings) == 1
    assert "cannot be read" in warnings[0]


def test_an_acknowledged_write_survives_a_kill(stack_home: Path) -> None:
    home = open_home(stack_home)
    launch = valkey_launch(home)

    def answers(_: int) -> bool:
        with redis.Redis(unix_socket_path=str(valkey_socket(home))) as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

    with running(launch, answers) as process, redis.Redis(unix_socket_path=str(valkey_socket(home))) as client:
        client.set("accepted", "yes")
        process.kill()
        process.wait(10)
    with running(launch, answers), redis.Redis(unix_socket_path=str(valkey_socket(home))) as client:
        assert client.get("accepted") == b"yes"


def test_memory_is_bounded_and_a_full_server_refuses(stack_home: Path) -> None:
    home = open_home(stack_home)
    with (
        running(valkey_launch(home, maxmemory_bytes=4 << 20), lambda _: valkey_socket(home).exists()),
        redis.Redis(unix_socket_path=str(valkey_socket(home))) as client,
    ):
        client.set("kept", "yes")
        refusals = 0
        for number in range(64):
            try:
                client.set(f"filler:{number}", b"x" * 200_000)
            except redis.ResponseError:
                refusals += 1
        assert refusals > 0
        assert client.get("kept") == b"yes"
