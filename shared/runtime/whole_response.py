"""An ASGI extension of our server: a whole response in one call, at half of the cost of two messages.

`scope["extensions"][EXTENSION]`, if it is there, is a `SendWhole`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

EXTENSION: Final = "treadle.whole_response"


class SendWhole(Protocol):
    """Sends the response of one request."""

    def __call__(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send it with its length. False: nothing was sent, and messages have to be sent instead.

        Args:
            status: code.
            headers: names in lower case, without `content-length`, `transfer-encoding` and `connection`. A line break
                is found, and other bytes are not checked.
            body: all of it.
        """
        ...


def sender_of(scope: Mapping[str, Any]) -> SendWhole | None:
    """Return the extension of a request; None: its server has none."""
    extensions = scope.get("extensions")
    return extensions.get(EXTENSION) if extensions else None
