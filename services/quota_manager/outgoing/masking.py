"""Masking of secrets that a server echoes: nothing of the mesh sees them, although the server may know them.

Masked: the value as it is, percent-encoded, escaped for JSON or HTML, in UTF-16, in hexadecimal digits, and in base64
at any place of the encoded text. A server that was given a secret can send it back in a form that is not in this list;
the hosts of a secret are those that its operator trusts with it.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote, quote_plus, unquote

MASK: Final = "***"


class Mask:
    """Replaces the values of the secrets of one call."""

    __slots__ = ("_forms",)

    def __init__(self, values: Iterable[str]) -> None:
        self._forms = sorted({form for value in values for form in _forms(value)}, key=len, reverse=True)
        """Longest first, because a short form can be a part of a longer one."""

    def __repr__(self) -> str:
        return f"Mask({MASK})"

    def __reduce__(self) -> str:
        raise TypeError("the mask of secrets cannot be serialised")

    def body(self, body: bytes) -> bytes:
        """Return a body without the secrets. O(size * forms)."""
        for form in self._forms:
            body = body.replace(form, MASK.encode())
        return body

    def text(self, text: str) -> str:
        """Return a text without the secrets."""
        return self.body(text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace") if self._forms else text

    def is_in(self, text: str) -> bool:
        """Return whether a text contains a secret, also if it is percent-encoded twice."""
        if not self._forms:
            return False
        found = (text, unquote(text), unquote(unquote(text)))
        return any(form in each.encode("utf-8", "replace") for each in found for form in self._forms)


def _forms(value: str) -> Iterator[bytes]:
    raw = value.encode()
    yield raw
    for encoded in (quote(value), quote(value, safe=""), quote_plus(value)):
        yield encoded.encode()
        yield _lower_hex(encoded).encode()
    escaped = json.dumps(value)[1:-1]
    yield escaped.encode()
    yield escaped.replace("/", "\\/").encode()
    yield html.escape(value).encode()
    yield html.escape(value).replace("&#x27;", "&#39;").encode()
    for utf16 in ("utf-16-le", "utf-16-be"):
        yield value.encode(utf16)
    yield raw.hex().encode()
    yield raw.hex().upper().encode()
    for offset in range(3):
        core = _base64_core(raw, offset)
        yield core
        yield core.translate(bytes.maketrans(b"+/", b"-_"))


def _lower_hex(quoted: str) -> str:
    """Return a percent-encoded text with lower-case digits: `%2F` as `%2f`."""
    first, *rest = quoted.split("%")
    return "%".join([first, *(each[:2].lower() + each[2:] for each in rest)])


def _base64_core(raw: bytes, offset: int) -> bytes:
    """Return the part of a base64 text that depends on `raw` alone, which begins at a byte `offset` of a group."""
    encoded = base64.b64encode(bytes(offset) + raw)
    begin = (0, 2, 3)[offset]
    whole = (offset + len(raw)) // 3 * 4
    rest = (0, 1, 2)[(offset + len(raw)) % 3]  # characters of the last group that no later byte changes
    return encoded[begin : whole + rest]
