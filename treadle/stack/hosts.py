"""Host and Origin of a request: one Host, and on a loopback address none that a foreign web page could send.

A page of another site may point a name of its own to 127.0.0.1 (DNS rebinding), or post a form there. A browser sends
the page's name with either: as `Host` in the first case, as `Origin` in the second. Nothing else tells such a request
from the user's own, because there are no keys.

The check concerns connections that arrive on a loopback address, and all connections where the operator names hosts:
without that, a service behind another address (a container's published port, a trusted network) cannot know its names.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.runtime.app import PROBLEM_JSON
from shared.runtime.errors import Forbidden, MalformedRequest, TreadleError

ANY = "*"
SCHEMES = ("http", "https")
"""Of the pages that may call."""
NAMES_KEPT = 256
"""Hosts and addresses of which the answer is remembered: the parsing of addresses cost 4 % of an action otherwise."""
LONGEST_HOST = 261
"""A name of the DNS (253), a colon and a port, rounded up: nothing longer is remembered."""
_encoder = msgspec.json.Encoder()


class HostCheck:
    """ASGI middleware in front of a service. Costs one pass over the headers."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str] = (), *, setting: str = "ALLOWED_HOSTS") -> None:
        """`allowed`: further names of this service, without a port; `*` allows all. `setting` names them in errors."""
        self._app = app
        self._allowed = frozenset(name.strip().lower() for name in allowed if name.strip())
        self._setting = setting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        body = _encoder.encode(refusal.problem())
        headers = [(b"content-type", PROBLEM_JSON.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

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
        on_loopback = server is not None and _is_loopback(server[0])
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


@lru_cache(NAMES_KEPT)
def _is_local(host: str) -> bool:
    """Is this authority a name or an address of this machine itself?"""
    name = hostname(host)
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def hostname(authority: str) -> str:
    """The name or address of `host:port`, without the brackets of IPv6; empty where it is none."""
    if authority.startswith("["):
        address, closed, port = authority[1:].partition("]")
        return address if closed and (not port or (port[0] == ":" and _is_port(port[1:]))) else ""
    name, _, port = authority.partition(":")
    return name.removesuffix(".") if _is_port(port) or not port else ""


def _is_port(text: str) -> bool:
    """Digits of ASCII: `isdigit` takes others too."""
    return text.isascii() and text.isdigit()


def _is_address(host: str) -> bool:
    """An address cannot be pointed elsewhere, as a name can."""
    try:
        ip_address(hostname(host))
    except ValueError:
        return False
    return True


@lru_cache(NAMES_KEPT)
def _is_loopback(address: str) -> bool:
    """Is this the loopback address of a connection, an IPv4 one in the form of IPv6 too?"""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)
