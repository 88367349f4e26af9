"""Authentic reports: proof that the harness wrote a report, and wrote it at its end.

Each run gets a fresh nonce. It enters the walls at the head of the harness's payload, is kept where the program cannot
name it (see `sandbox/harnesses/guard.py`) and returns at the head of the report, which is written only after the last
step. A report without the nonce may state a failure, because a program may claim its own failure; it never states a
success.
"""

from __future__ import annotations

import hmac
import json
import marshal
import secrets
from typing import Any, Final

import msgspec

NONCE_BYTES: Final = 32
"""Length of the nonce as sent: 16 random bytes as hexadecimal text."""


class HarnessReport(msgspec.Struct, frozen=True, kw_only=True):
    """A harness's report."""

    authentic: bool
    """True if it has this run's nonce, so the harness came to its end."""
    details: dict[str, Any]
    """Its details. In a report that is not authentic these are claims of the program about its own failure."""


def new_nonce() -> bytes:
    """Return a nonce for one run, NONCE_BYTES long."""
    return secrets.token_hex(NONCE_BYTES // 2).encode()


def pack(nonce: bytes, secret: object) -> bytes:
    """Return the harness's payload: the nonce, then `secret` marshalled, so that the harness needs no import to read
    it.
    """
    return nonce + marshal.dumps(msgspec.to_builtins(secret))


def unpack(report: bytes, nonce: bytes) -> HarnessReport | None:
    """Read a report; None if it is missing or malformed (which is never a success)."""
    authentic = hmac.compare_digest(report[:NONCE_BYTES], nonce)
    body = report[NONCE_BYTES:] if authentic else report
    try:
        return HarnessReport(authentic=authentic, details=_decoded(body))
    except (ValueError, RecursionError):
        return None


def _decoded(body: bytes) -> dict[str, Any]:
    """Decode JSON that may contain lone surrogates, as Python's encoder writes them: they become question marks.

    Raises:
        ValueError, RecursionError: it is not a JSON object.
    """
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        text = json.dumps(json.loads(body), ensure_ascii=False)
        return msgspec.json.decode(text.encode("utf-8", "replace"), type=dict[str, Any])
