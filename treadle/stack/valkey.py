"""The embedded Valkey: the bus and the store of answers. Acknowledged writes are on the disk.

It uses ``appendfsync always``, not ``everysec``: with a slow disk and a killed server the latter lost 2,725 of 31,144
acknowledged writes. The price is 0.29 instead of 0.10 ms for a single write, paid once per pipeline.
"""

import os
import signal
import socket
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from treadle.stack.home import Home
from treadle.stack.process import Launch
from treadle.stack.programs import valkey_server

MEBIBYTE = 1 << 20


class ConfigReader(Protocol):
    """The only command of a Redis client (``redis.asyncio.Redis``) that is needed here."""

    def config_get(self, pattern: str, /) -> Awaitable[Mapping[Any, Any]]: ...


def valkey_socket(home: Home) -> Path:
    return home.sockets / "valkey.sock"


def valkey_url(home: Home) -> str:
    return f"unix://{quote(str(valkey_socket(home)))}"


def valkey_launch(home: Home, *, maxmemory_bytes: int = 1024 * MEBIBYTE, durable: bool = True) -> Launch:
    """Return the launch of Valkey on ``home``: a unix socket that only its account and root can open, no TCP port.

    Args:
        maxmemory_bytes: memory bound. At the bound writes fail (``noeviction``) and new work is answered 503.
        durable: False turns the append-only file off, for tests that need no restart.
    """
    options = {
        "port": "0",
        "unixsocket": str(valkey_socket(home)),
        "unixsocketperm": "700",
        "dir": str(home.valkey),
        "daemonize": "no",
        "logfile": "",
        "always-show-logo": "no",
        "databases": "16",
        "appendonly": "yes" if durable else "no",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        "rdbcompression": "no",  # for the rewritten file, where it took a tenth of the CPU under load
        "save": "",  # the append-only file is the only copy; each snapshot would cost a fork
        "maxmemory": str(maxmemory_bytes),
        "maxmemory-policy": "noeviction",
        "maxclients": "1024",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    return Launch(
        name="valkey",
        argv=(str(valkey_server(home)), *arguments),
        env={"PATH": os.defpath, "LC_ALL": "C"},
        account=home.account,
        cwd=home.valkey,
        grace_s=20.0,
        death_signal=signal.SIGTERM,
    )


def valkey_answers(path: Path, *, timeout_s: float = 1.0) -> bool:
    """Return whether the server behind the socket takes commands, which it does after loading its file. Blocks."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False


async def durability_warnings(redis: ConfigReader) -> list[str]:
    """Return how a server that we did not configure may lose accepted work; empty if it does not.

    One sentence per mismatch, each with the setting that corrects it. A server that hides its configuration (managed
    services forbid CONFIG) gets one sentence about that.
    """
    wanted = {
        "appendonly": ("yes", "accepted actions are lost when it restarts"),
        "appendfsync": ("always", "actions accepted in the last second are lost when its machine stops"),
        "maxmemory-policy": ("noeviction", "accepted actions are dropped when its memory is full"),
    }
    warnings: list[str] = []
    for name, (value, consequence) in wanted.items():
        try:
            found = _text(await redis.config_get(name)).get(name)
        except Exception as error:  # noqa: BLE001 - clients raise different errors for a rejected command
            return [f"its configuration cannot be read ({error}), so a crash may lose accepted work"]
        if found != value:
            warnings.append(f"{name} is {found!r}, not {value!r}: {consequence}. Fix: CONFIG SET {name} {value}")
    if _text(await redis.config_get("maxmemory")).get("maxmemory") == "0":
        warnings.append("maxmemory is 0: it grows until the machine kills it. Fix: CONFIG SET maxmemory 1gb")
    return warnings


def _text(reply: Mapping[Any, Any]) -> dict[str, str]:
    return {_decoded(name): _decoded(value) for name, value in reply.items()}


def _decoded(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
