"""An ASGI extension of our server: a request that has arrived with its whole body, and needs no task to begin.

`scope["extensions"][EXTENSION]`, if it is there, is a `WholeRequest`. An application may then return `ANSWERED_LATER`
instead of a coroutine: it has begun the call, and either responds from a callback or starts a task later. A task with
its coroutines costs 25 us a request, and most answers of a hot call come within milliseconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any, Final, Protocol

from shared.runtime.whole_response import SendWhole

EXTENSION: Final = "treadle.whole_request"


class WholeRequest(Protocol):
    """A request whose application has not begun. The application responds, or starts a task, once, after it has
    returned `ANSWERED_LATER`. Otherwise requests behind it on the connection would be handled inside its call.
    """

    when_gone: Callable[[], None] | None
    """Called if the connection ends before the response. Set it to None at the end."""

    @property
    def body(self) -> bytes:
        """All of it."""
        ...

    @property
    def respond(self) -> SendWhole:
        """Sends the whole response."""
        ...

    def start(self, answer: Coroutine[Any, Any, None]) -> None:
        """Go on with a task that sends the response as messages. It is one of the server's tasks: a stopping server
        waits for it.
        """
        ...


class _AnsweredLater:
    def __await__(self) -> Generator[Any, None, None]:
        raise AssertionError("a server that offers no whole requests got this")


ANSWERED_LATER: Final[Awaitable[None]] = _AnsweredLater()
"""Returned by an application that has begun a whole request."""


def whole_request_of(scope: Mapping[str, Any]) -> WholeRequest | None:
    """Return the extension of a request; None: it has not arrived as a whole, or its server has no such extension."""
    extensions = scope.get("extensions")
    return extensions.get(EXTENSION) if extensions else None
