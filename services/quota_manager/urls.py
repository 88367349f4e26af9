"""URLs of outgoing calls, read strictly: what two parsers could read in two ways is refused.

The parts that are read here are also the ones that are sent, checked and compared, so no other reading takes place.
Hosts are ASCII names or canonical IP addresses. `2130706433`, `0177.0.0.1`, `127.1` and `0x7f.1` are addresses for some
systems and names for others; full-width digits and `%31` are digits for some. All of them are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final
from urllib.parse import quote, urlencode, urljoin

MOST_CHARS: Final = 8192
"""Longest URL with its query. Common servers refuse longer ones."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_URL: Final = re.compile(r"(https?)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.IGNORECASE | re.DOTALL)
_AUTHORITY: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_NAME: Final = re.compile(r"(?=.{1,253}$)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_REFUSED: Final = re.compile(r"[\x00-\x20\x7f\\]")
_SAFE: Final = "%/:?@!$&'()*+,;=-._~[]"


class InvalidUrl(ValueError):
    """The text is not a URL that may be called. The message says what to change, and shows no query."""


Origin = tuple[str, str, int]
"""Scheme, host and port: what secrets and redirects are compared by."""


@dataclass(frozen=True, slots=True)
class UrlTarget:
    """A URL in its parts."""

    scheme: str
    host: str
    """Lower case, without a final dot; an IPv6 address without brackets."""
    port: int
    path: str
    query: str

    @property
    def origin(self) -> Origin:
        return self.scheme, self.host, self.port

    @property
    def is_address(self) -> bool:
        """The host is an IP address."""
        return ":" in self.host or self.host.rpartition(".")[2].isdigit()

    @property
    def shown(self) -> str:
        """The URL without its query, which can have a key."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"

    @property
    def url(self) -> str:
        return f"{self.shown}?{self.query}" if self.query else self.shown

    def __repr__(self) -> str:
        return f"UrlTarget({self.shown!r})"


def read_url(text: str, query: Mapping[str, str] | None = None) -> UrlTarget:
    """Return the parts of a URL.

    Args:
        text: absolute. Characters that are not ASCII are percent-encoded, except in the host.
        query: added to the query of `text`.
    Raises:
        InvalidUrl: it is none that may be called.
    """
    if len(text) > MOST_CHARS:
        raise InvalidUrl(f"the URL is longer than {MOST_CHARS} characters: send data in the body")
    if _REFUSED.search(text):
        raise InvalidUrl("the URL contains a space, a control character or a backslash: percent-encode them")
    found = _URL.fullmatch(text)
    if found is None:
        raise InvalidUrl("the URL does not begin with http:// or https://")
    scheme = found[1].lower()
    host, port = _read_authority(found[2], DEFAULT_PORTS[scheme])
    try:
        path = quote(found[3], safe=_SAFE) or "/"
        added = urlencode(query or {}, quote_via=quote, safe="")
        joined = "&".join(part for part in (quote(found[4] or "", safe=_SAFE), added) if part)
    except UnicodeEncodeError:
        raise InvalidUrl("the URL or its query is not valid Unicode") from None
    if len(path) + len(joined) > MOST_CHARS:
        raise InvalidUrl(f"the URL is longer than {MOST_CHARS} characters: send data in the body")
    return UrlTarget(scheme, host, port, path, joined)


def redirected(target: UrlTarget, location: str) -> UrlTarget:
    """Return the target of a redirect.

    Args:
        location: absolute, or relative to `target`.
    Raises:
        InvalidUrl: it is none that may be called.
    """
    if len(location) > MOST_CHARS or _REFUSED.search(location):  # before joining, which would delete tabs and newlines
        raise InvalidUrl("the URL is too long, or contains a space, a control character or a backslash")
    try:
        joined = urljoin(target.url, location)
    except ValueError:
        raise InvalidUrl("the URL cannot be read") from None
    return read_url(joined)


def _read_authority(authority: str, default_port: int) -> tuple[str, int]:
    if "@" in authority:
        raise InvalidUrl("the URL contains a user name: send credentials as a header with a secret")
    if not authority.isascii():
        raise InvalidUrl("the host is not ASCII: write an international name in its xn-- form")
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        raise InvalidUrl("the host is not valid: write a name or an IP address, then a port if it is not the usual one")
    port = default_port if found[2] is None else int(found[2])
    if not 0 < port < 65536:
        raise InvalidUrl("the port is not between 1 and 65535")
    host = found[1].lower()
    if host.startswith("["):
        try:
            return IPv6Address(host[1:-1]).compressed, port
        except AddressValueError:
            raise InvalidUrl("the host is not a valid IPv6 address") from None
    if _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]):
        return _read_ipv4(host), port
    host = host.removesuffix(".")
    if not _NAME.fullmatch(host):
        raise InvalidUrl("the host is not a valid name")
    return host, port


def _read_ipv4(host: str) -> str:
    """Return a host that ends in a number, which some systems read as an address, if it is in the one usual form."""
    try:
        return str(IPv4Address(host))
    except AddressValueError:
        raise InvalidUrl("the host is not a valid name, and no IPv4 address of four decimal numbers") from None
