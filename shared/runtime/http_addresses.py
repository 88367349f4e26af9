"""Addresses that outgoing connections may use: each is judged after DNS resolution, and again when its socket is made.

The socket connects to the address that was judged; no second resolution takes place.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

Judge = Callable[[str], str]
"""From an IP address to the reason why it is refused; empty: it may be connected to."""
Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""From a host name to its IP addresses. An `OSError` means: it has none now."""

LOOKUPS: Final = 32
"""DNS lookups at once. A lookup cannot be cancelled, so a slow name server holds its threads."""


class AddressRefused(OSError):
    """The judge refuses an address. An OSError, because connecting code expects no other error."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EACCES, reason)
        self.reason = reason


class SystemResolver:
    """The operating system's resolver, in threads of its own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="dns")

    async def __call__(self, host: str) -> Sequence[str]:
        look_up = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        except UnicodeError:
            raise OSError(errno.EINVAL, "it is no host name") from None
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

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
