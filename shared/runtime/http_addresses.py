"""Addresses that outgoing connections may use: each is judged after DNS resolution, and again when its socket is made.

The socket connects to the address that was judged; no second resolution takes place.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

from shared.runtime.units import Seconds

Judge = Callable[[str], str]
"""From an IP address to the reason why it is refused; empty: it may be connected to."""
Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""From a host name to its IP addresses. An `OSError` means: it has none now."""

LOOKUPS: Final = 32
"""DNS lookups at once. A lookup cannot be cancelled, so a slow name server holds its threads."""
LOOKUPS_EACH: Final = 4
"""DNS lookups of one owner at once: slow names of one do not stop the others."""
TURN_S: Final[Seconds] = 10.0
"""Most time that a lookup waits for its turn among those of its owner."""
owner: ContextVar[str] = ContextVar("owner", default="")
"""Owner of the lookups of the current task."""


class AddressRefused(OSError):
    """The judge refuses an address. An OSError, because connecting code expects no other error."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EACCES, reason)
        self.reason = reason


LookUp = Callable[[str], Sequence[str]]
"""From a host name to its addresses; blocks. Raises OSError or UnicodeError."""


def _look_up(host: str) -> Sequence[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class _Turns:
    """Lookups of one owner."""

    def __init__(self) -> None:
        self.free = asyncio.Semaphore(LOOKUPS_EACH)
        self.users = 0
        """Callers and threads."""


class SystemResolver:
    """The operating system's resolver, in threads of its own. Owners have `LOOKUPS_EACH` of them at most."""

    def __init__(self, look_up: LookUp = _look_up) -> None:
        self._look_up = look_up
        self._threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="dns")
        self._turns: dict[str, _Turns] = {}

    async def __call__(self, host: str) -> Sequence[str]:
        """Return the addresses of a name.

        Raises:
            OSError: it has none, or earlier lookups of the owner have lasted `TURN_S`.
        """
        name = owner.get()
        turns = self._turns.setdefault(name, _Turns())
        turns.users += 1
        try:
            async with asyncio.timeout(TURN_S):
                await turns.free.acquire()
            running = asyncio.get_running_loop().run_in_executor(self._threads, self._look_up, host)
            turns.users += 1
            running.add_done_callback(lambda _: self._ended(name, turns))
            # A caller that is cancelled leaves its thread behind, which keeps the turn.
            return await asyncio.shield(running)
        except TimeoutError:
            raise OSError(errno.EAGAIN, "earlier lookups of names are slow") from None
        except UnicodeError:
            raise OSError(errno.EINVAL, "it is no host name") from None
        finally:
            self._left(name, turns)

    def _ended(self, name: str, turns: _Turns) -> None:
        turns.free.release()
        self._left(name, turns)

    def _left(self, name: str, turns: _Turns) -> None:
        turns.users -= 1
        if not turns.users:
            del self._turns[name]

    def close(self) -> None:
        """Begin no further lookup. Does not wait for those that run."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class JudgedResolver(AbstractResolver):
    """Resolves names to addresses that the judge accepts.

    A name is refused if any of its addresses is: a name that is partly private is an attack or a mistake.
    """

    def __init__(self, resolve: Resolve, judge: Judge) -> None:
        self._resolve = resolve
        self._judge = judge

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002 - both families are tried
    ) -> list[ResolveResult]:
        """Return the addresses of a name.

        Raises:
            AddressRefused: one of them is refused.
            OSError: it has none.
        """
        addresses = await self._resolve(host)
        if not addresses:
            raise OSError(errno.ENOENT, "it has no address")
        for address in addresses:
            if reason := self._judge(address):
                raise AddressRefused(reason)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Nothing to close: the resolver belongs to who gave it."""


def is_own(address: str) -> bool:
    """Return whether an address belongs to this host. Sends nothing: a datagram socket only looks up its route.

    A host's public address leads to its own services past every firewall before it.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:  # no route
            return False
        return str(probe.getsockname()[0]) == address


def judged_socket(judge: Judge, address_info: Any) -> socket.socket:
    """Return a socket for an address: the last judgement, and the only one for an address that no name led to.

    Raises:
        AddressRefused: the address is refused.
    """
    family, kind, proto, _, address = address_info
    if reason := judge(str(address[0])):
        raise AddressRefused(reason)
    return socket.socket(family, kind, proto)
