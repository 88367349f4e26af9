"""One outgoing call and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec


class NamesSecret(Protocol):
    """Value of a header by reference."""

    @property
    def secret(self) -> str: ...


HeaderValue = str | NamesSecret


class SecretName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Value of a header by reference: `{"secret": "name"}`. The operator's setting has the value."""

    secret: str


@dataclass(frozen=True, slots=True)
class OutgoingCall:
    """One call. `repr` shows what was called, and nothing that was sent."""

    method: str
    url: str = field(repr=False)
    """`http` or `https`. It may have a query."""
    query: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to the query of `url`, percent-encoded."""
    headers: Mapping[str, HeaderValue] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)
    content_type: str | None = None
    """Of the body. The header `content-type` has priority."""
    timeout_s: float = 60.0
    """Seconds from the beginning to the last byte of the answer, redirects included."""
    most_bytes: int = 1 << 20
    """Most bytes of the answer's body, decompressed."""
    tenant: str = "default"
    """Owner of the call, by whom secrets are granted."""
    first_byte_s: float | None = None
    """Seconds to the head of each answer; None: `timeout_s`. A smaller value leaves time for a second call."""


@dataclass(frozen=True, slots=True)
class OutgoingAnswer:
    """An answer, of any status. Echoes of the call's secrets are replaced by `***`."""

    status: int
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    """Lower-case names, values; the first `MOST_HEADERS`."""
    body: bytes = field(repr=False)
    """Decompressed."""
    url: str
    """Final URL after redirects, without its query."""
    elapsed_s: float
    """Seconds from the beginning of the call to the last byte."""
    first_byte_s: float
    """Seconds from the beginning of the call to the head of the answer."""
