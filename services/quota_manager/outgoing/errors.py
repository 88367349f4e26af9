"""Ends of an outgoing call without an answer. The stage says what is safe to repeat.

| stage | error | a repeat |
| --- | --- | --- |
| `connect` | `NotConnected` | is safe: nothing was sent |
| `first-byte` | `NoFirstByte` | is safe if the call is: it was sent, and may have been executed |
| `answer` | `BrokenAnswer` | as for `first-byte`; an answer that is too large is so again |
| `memory` | `NoMemory` | as for `first-byte`; the upstream is not at fault |
| `refused` | `ForbiddenAddress`, `InvalidCall` | is useless |

No text contains a header, a query, a body or a secret.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

OutgoingStage = Literal["connect", "first-byte", "answer", "memory", "refused"]

MOST_CHARS: Final = 512
"""Length at which a text is cut."""


class OutgoingError(Exception):
    """Base: a call has no answer."""

    stage: ClassVar[OutgoingStage]

    def __init__(self, reason: str) -> None:
        self.reason = reason[:MOST_CHARS]
        super().__init__(self.reason)


class NotConnected(OutgoingError):
    """No connection: the name has no address, or the server refuses, does not answer or fails at TLS."""

    stage = "connect"


class NoFirstByte(OutgoingError):
    """The request was sent, at least in part, and no answer has begun."""

    stage = "first-byte"


class BrokenAnswer(OutgoingError):
    """The answer is cut, too large, not valid HTTP, not of its encoding, or redirects without end."""

    stage = "answer"


class NoMemory(OutgoingError):
    """The answer is large, and this process has no memory for it in the call's time."""

    stage = "memory"


class ForbiddenAddress(OutgoingError):
    """The call leads, itself or by a redirect, to an address that must not be called."""

    stage = "refused"


class InvalidCall(OutgoingError):
    """The call itself is wrong: its URL, a header, or a secret that it may not use. The text says what to change."""

    stage = "refused"
