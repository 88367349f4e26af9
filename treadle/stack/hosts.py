"""Check of a request's Host and Origin: one Host, and on a loopback address none that a foreign web page could send.

A page of another site may point its own name to 127.0.0.1 (DNS rebinding), or post a form there. In both cases the
browser sends the page's name: as `Host` in the first, as `Origin` in the second. There are no keys, so nothing else
distinguishes such a request from the user's own.

The check applies to connections that arrive on a loopback address, and to all connections if the operator names hosts.
Without such names, a service behind another address (a container's published port, a trusted network) has no list of
its names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from functools import lru_cache
from ipaddress import ip_address

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.runtime.app import PROBLEM_JSON
from shared.runtime.errors import Forbidden, MalformedRequest, TreadleError

ANY = "*"
SCHEMES = ("http", "https")
"""Schemes of pages that may call."""
NAMES_KEPT = 256
"""Hosts and addresses whose results are cached. Without a cache, parsing addresses took 4 % of an action's cost."""
LONGEST_HOST = 261
"""A DNS name (253), a colon and a port, rounded up. Nothing longer is cached."""
_encoder = msgspec.json.Encoder()


class HostCheck:
    """ASGI middleware in front of a service. Reads the headers once."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str] = (), *, setting: str = "ALLOWED_HOSTS") -> None:
        """`allowed`: further names of this service, without ports; `*` allows all. `setting`: its name for errors."""
        self._app = app
        self._allowed = frozenset(name.strip().lower() for name in allowed if name.strip())
        self._setting = setting
        self._accepts = lru_cache(NAMES_KEPT)(self._accepts_host)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Return the coroutine of the app, or of the refusal: one of its own would cost each request."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        return self._app(scope, receive, send) if refusal is None else _refuse(refusal, send)

    def _refusal(self, scope: Scope) -> TreadleError | None:
        hosts: list[bytes] = []
        origins: list[bytes] = []
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origins.append(value)
        if len(hosts) > 1 or (not hosts and scope["http_version"] == "1.1"):
            return MalformedRequest(what=f"the request has {len(hosts)} Host headers; send one")
        server = scope.get("server")
        address: str | None = None if server is None else server[0]
        if not origins and hosts and len(hosts[0]) <= LONGEST_HOST and self._accepts(hosts[0], address):
            return None
        return self._refusal_of(hosts, origins, address)

    def _accepts_host(self, host: bytes, address: str | None) -> bool:
        return self._refusal_of([host], [], address) is None

    def _refusal_of(self, hosts: list[bytes], origins: list[bytes], address: str | None) -> TreadleError | None:
        on_loopback = address is not None and _is_loopback(address)
        if ANY in self._allowed or not (on_loopback or self._allowed):
            return None
        host = hosts[0].decode("latin-1").strip().lower() if hosts else "localhost"
        local = len(host) <= LONGEST_HOST and _is_local(host)
        if not (local or hostname(host) in self._allowed) and (on_loopback or not _is_address(host)):
            return self._forbidden("Host", host)
        for raw in origins:
            origin = raw.decode("latin-1").strip().lower()
            scheme, _, authority = origin.partition("://")
            if scheme not in SCHEMES or (authority != host and hostname(authority) not in self._allowed):
                return self._forbidden("Origin", origin)
        return None

    def _forbidden(self, header: str, value: str) -> Forbidden:
        return Forbidden(what=f"{header} {value[:64]!r} is not a name of this service; {self._setting} names more")


async def _refuse(refusal: TreadleError, send: Send) -> None:
    body = _encoder.encode(refusal.problem())
    headers = [(b"content-type", PROBLEM_JSON.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@lru_cache(NAMES_KEPT)
def _is_local(host: str) -> bool:
    """Return whether this authority is a name or an address of this machine."""
    name = hostname(host)
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def hostname(authority: str) -> str:
    """Return the name or address of `host:port`, without IPv6's brackets; empty if it is invalid."""
    if authority.startswith("["):
        address, closed, port = authority[1:].partition("]")
        return address if closed and (not port or (port[0] == ":" and _is_port(port[1:]))) else ""
    name, _, port = authority.partition(":")
    return name.removesuffix(".") if _is_port(port) or not port else ""


def _is_port(text: str) -> bool:
    """Accept ASCII digits only; `isdigit` alone accepts others."""
    return text.isascii() and text.isdigit()


def _is_address(host: str) -> bool:
    """Return whether it is an address. Unlike a name, an address cannot be redirected."""
    try:
        ip_address(hostname(host))
    except ValueError:
        return False
    return True


@lru_cache(NAMES_KEPT)
def _is_loopback(address: str) -> bool:
    """Return whether this is a loopback address, also as an IPv4 address in IPv6 form."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)
