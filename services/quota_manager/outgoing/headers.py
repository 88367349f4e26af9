"""Headers of outgoing calls and of their answers, checked and bounded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from services.quota_manager.outgoing.calls import HeaderValue
from services.quota_manager.outgoing.errors import InvalidCall
from services.quota_manager.secrets import Secret, SecretRefused, Secrets
from services.quota_manager.urls import Origin

MOST_HEADERS: Final = 64
"""Most headers of a call, and of an answer; further ones of an answer are cut."""
MOST_CHARS: Final = 8192
"""Longest header value of a call. Common servers refuse longer ones."""
MOST_ANSWER_CHARS: Final = 1 << 15
"""Most characters of all headers of an answer; further ones are cut."""
USER_AGENT: Final = "treadle"

OURS: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect",
     "accept-encoding", "http2-settings"}
)  # fmt: skip
"""Headers that belong to the connection or name the server. A call that sets them could reach another server."""
ABROAD: Final = frozenset({"accept", "accept-language", "user-agent"})
"""Headers that follow a redirect to another origin. Any other can be a credential, such as `x-api-key`."""

TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
VALUE: Final = re.compile(r"[\t\x20-\x7e]*")


def is_settable(name: str) -> bool:
    """Return whether a call may set the header of this name."""
    return TOKEN.fullmatch(name) is not None and name.lower() not in OURS and not name.lower().startswith("proxy-")


def checked_headers(headers: Mapping[str, HeaderValue], content_type: str | None) -> dict[str, tuple[str, HeaderValue]]:
    """Return the headers of a call: lower-case name -> name and value. Secrets are not resolved.

    Raises:
        InvalidCall: one cannot be sent. The text has no value.
    """
    if len(headers) > MOST_HEADERS:
        raise InvalidCall(f"the call has more than {MOST_HEADERS} headers")
    checked: dict[str, tuple[str, HeaderValue]] = {}
    for name, value in headers.items():
        if not TOKEN.fullmatch(name):
            raise InvalidCall("the name of a header is not valid: use letters, digits and hyphens")
        if not is_settable(name):
            raise InvalidCall(f"the header {name!r} cannot be set: it belongs to the connection")
        if isinstance(value, str):
            check_value(name, value)
        if name.lower() in checked:
            raise InvalidCall(f"the header {name!r} is there twice")
        checked[name.lower()] = (name, value)
    if content_type is not None and "content-type" not in checked:
        check_value("content-type", content_type)
        checked["content-type"] = ("Content-Type", content_type)
    checked.setdefault("user-agent", ("User-Agent", USER_AGENT))
    return checked


def check_value(name: str, value: str) -> None:
    """Raise `InvalidCall` if a header cannot have this value."""
    if len(value) > MOST_CHARS:
        raise InvalidCall(f"the header {name!r} is longer than {MOST_CHARS} characters")
    if not VALUE.fullmatch(value):
        raise InvalidCall(f"the header {name!r} has a line break or a character that is not ASCII: encode it")


def secrets_of(
    headers: Mapping[str, tuple[str, HeaderValue]], secrets: Secrets, tenant: str, origin: Origin
) -> dict[str, Secret]:
    """Return the secrets that the headers of a call name: lower-case name of the header -> secret.

    Raises:
        InvalidCall: the call may not use one.
    """
    found: dict[str, Secret] = {}
    for name, (_, value) in headers.items():
        if not isinstance(value, str):
            try:
                found[name] = secrets.granted(value.secret, tenant=tenant, origin=origin, header=name)
            except SecretRefused as error:
                raise InvalidCall(str(error)) from None
    return found


def bounded(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the first headers of an answer with lower-case names, as many as the bounds allow."""
    kept: list[tuple[str, str]] = []
    chars = 0
    for name, value in headers:
        chars += len(name) + len(value)
        if len(kept) == MOST_HEADERS or chars > MOST_ANSWER_CHARS:
            break
        kept.append((name.lower(), value))
    return tuple(kept)
