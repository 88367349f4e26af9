"""Heads of HTTP/1.1 requests, and the parts of the addresses that they go to."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from yarl import URL

from shared.runtime.streamed_answer import Header

_TARGET: Final = re.compile(r"[!-~]*")
_ORIGIN: Final = re.compile(r"[a-zA-Z]+://[^/?#]*")
_METHOD: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods of requests that say nothing of a body if they have none."""


class InvalidRequest(ValueError):
    """The request cannot be written as HTTP."""


class Origin(NamedTuple):
    """Server of an address."""

    host: str
    port: int
    is_secure: bool
    written: bytes
    """Value of the header `Host`."""
    authorization: bytes = b""
    """Value of the header `Authorization`, if the address has a user."""


def split_address(url: str) -> tuple[Origin, str]:
    """Return the server of an address, and the request's target.

    Raises:
        InvalidRequest: it is no address of HTTP.
    """
    found = _ORIGIN.match(url)
    target = "" if found is None else url[found.end() :].partition("#")[0]
    if found is None or not _TARGET.fullmatch(target):
        raise InvalidRequest("its address is invalid")
    return _origin(found[0]), target if target.startswith("/") else f"/{target}"


@lru_cache(maxsize=1024)
def _origin(text: str) -> Origin:
    try:
        url = URL(text)
        host, port, scheme = url.raw_host, url.port, url.scheme
        written = (url.host_port_subcomponent or "").encode("ascii")
        user, password = url.user or "", url.password or ""
    except ValueError as error:
        raise InvalidRequest("its address is invalid") from error
    if not host or port is None or scheme not in ("http", "https"):
        raise InvalidRequest("its address is invalid")
    basic = b"Basic " + base64.b64encode(f"{user}:{password}".encode()) if user or password else b""
    return Origin(host, port, scheme == "https", written, basic)


def request_head(
    method: str, target: str, origin: Origin, headers: Sequence[Header], size: int | None, *, closes: bool, key: bytes
) -> bytes:
    """Return the head of a request, with the empty line at its end.

    Args:
        method: as it is written.
        target: path and query.
        origin: the server.
        headers: of the request, without its length.
        size: bytes of the body; None: it is sent in chunks.
        closes: the server shall close the connection after the answer.
        key: value of the header `Authorization` where the request has none; empty: none.

    Raises:
        InvalidRequest: the method is none, or a header contains a line break.
    """
    if not _METHOD.fullmatch(method):
        raise InvalidRequest("its method is invalid")
    lines = [b"%b %b HTTP/1.1" % (method.encode(), target.encode()), b"host: " + origin.written]
    lines += [b"%b: %b" % header for header in headers]
    if (key or origin.authorization) and not any(name == b"authorization" for name, _ in headers):
        lines.append(b"authorization: " + (origin.authorization or key))
    if size is None:
        lines.append(b"transfer-encoding: chunked")
    elif size or method not in _WITHOUT_BODY:
        lines.append(b"content-length: %d" % size)
    if closes:
        lines.append(b"connection: close")
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1 or b"\0" in head:
        raise InvalidRequest("a header contains a line break")
    return head + b"\r\n\r\n"
