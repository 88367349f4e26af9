"""The seal: how a grader knows that a report was written by the harness, and at its end.

Each run gets a fresh nonce. It enters the walls at the head of the harness's payload, rests where the program cannot
name it (`sandbox/harnesses/sealed.py` says where) and comes back at the head of the report, written only after the
last step. A report without it may tell of a failure, since anybody may say of himself that he failed; it never tells
of a success.
"""

from __future__ import annotations

import hmac
import json
import marshal
import secrets
from typing import Any, Final

import msgspec

NONCE_BYTES: Final = 32
"""Length of the nonce on the wire: 16 random bytes as hexadecimal text."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a harness said."""

    sealed: bool
    """True: it carries this run's nonce, so the harness came to its end."""
    told: dict[str, Any]
    """Its details. From an unsealed report these are claims of the program about its own failure."""


def new_nonce() -> bytes:
    """A nonce for one run, NONCE_BYTES long."""
    return secrets.token_hex(NONCE_BYTES // 2).encode()


def pack(nonce: bytes, secret: object) -> bytes:
    """The harness's payload: the nonce, then `secret` marshalled: the harness reads it without importing anything."""
    return nonce + marshal.dumps(msgspec.to_builtins(secret))


def unpack(report: bytes, nonce: bytes) -> Report | None:
    """Read a report; None where there is none or it is garbage (which is never a success)."""
    sealed = hmac.compare_digest(report[:NONCE_BYTES], nonce)
    body = report[NONCE_BYTES:] if sealed else report
    try:
        return Report(sealed=sealed, told=_decoded(body))
    except (ValueError, RecursionError):
        return None


def _decoded(body: bytes) -> dict[str, Any]:
    """JSON that may hold halves of surrogate pairs, as Python's encoder writes them: they become question marks.

    Raises:
        ValueError, RecursionError: it is no JSON object.
    """
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        text = json.dumps(json.loads(body), ensure_ascii=False)
        return msgspec.json.decode(text.encode("utf-8", "replace"), type=dict[str, Any])
