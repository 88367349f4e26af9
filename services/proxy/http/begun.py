"""Calls that have begun without a task, and answer from a callback.

Most leases are granted and released within milliseconds. For these a task, its coroutines and its limits cost more
than the call itself. So what takes longer, fails, or needs more than one write of its response is left to a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from services.proxy.http.call import Call
from services.proxy.http.replies import Reply, headers_of
from shared.runtime.units import Seconds
from shared.runtime.whole_request import WholeRequest

TASK_AFTER_S: Final[Seconds] = 0.5
"""Time after which a begun call gets a task, with all of its limits. It gets one at once if its caller goes."""


class BegunCall(Protocol):
    """The rest of a call."""

    @property
    def done(self) -> asyncio.Future[Any]:
        """What the call waits for."""
        ...

    def reply(self) -> Reply | None:
        """Return the reply, after `done`. None, or an exception: `finish` is needed."""
        ...

    async def finish(self) -> Reply:
        """Return the reply, also before `done`. Raises the errors of the call."""
        ...

    def caller_gone(self) -> None:
        """Note that the caller has gone, before `finish` or during it."""
        ...


Begin = Callable[[Call, bytes], BegunCall | None]
"""Begins a call with this body. None, or an exception: nothing has begun, and the route's handler is needed."""
Finish = Callable[[Call, Callable[[Call], Awaitable[Reply]]], Coroutine[Any, Any, None]]
"""Sends what a handler returns, or its error, and closes the call."""


class CallWithoutTask:
    """One begun call until it is answered, or has a task."""

    __slots__ = ("_begun", "_call", "_finish", "_request", "_timer")

    def __init__(self, call: Call, begun: BegunCall, request: WholeRequest, finish: Finish) -> None:
        self._call, self._begun, self._request, self._finish = call, begun, request, finish
        self._timer = call.proxy.timers.after(TASK_AFTER_S, self._start_task)
        begun.done.add_done_callback(self._done)
        request.when_gone = self._gone

    def _gone(self) -> None:
        if self._timer.cancel():
            self._begun.caller_gone()
            self._start_task()

    def _done(self, _: asyncio.Future[Any]) -> None:
        if not self._timer.cancel():
            return  # it has a task
        self._request.when_gone = None  # it refers to this, which refers to the request
        try:
            reply = self._begun.reply()
        except Exception:  # noqa: BLE001  # `finish` raises it again, for the reply
            reply = None
        if reply is None:
            self._start_task()
        elif self._request.respond(reply.status, headers_of(reply), reply.body):
            self._call.close()
        else:
            self._request.start(self._finish(self._call, _returning(reply)))

    def _start_task(self) -> None:
        self._request.when_gone = self._begun.caller_gone  # the task's own watch begins later
        self._request.start(self._finish(self._call, lambda _: self._begun.finish()))


def _returning(reply: Reply) -> Callable[[Call], Awaitable[Reply]]:
    async def handler(_: Call) -> Reply:
        return reply

    return handler
