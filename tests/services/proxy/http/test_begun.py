"""Calls that begin without a task: answered from a callback, or left to a task, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message

from services.proxy.http import begun
from services.proxy.http.asgi import HotPath, HotRoute
from services.proxy.http.bodies import Bodies
from services.proxy.http.call import Call
from services.proxy.http.replies import Reply
from services.proxy.settings import ProxySettings
from shared.runtime.coarse_timers import CoarseTimers
from shared.runtime.errors import BadRequest, Conflict
from shared.runtime.whole_request import ANSWERED_LATER
from shared.runtime.whole_request import EXTENSION as WHOLE_REQUEST


class Offered:
    """A whole request that notes what becomes of it."""

    def __init__(self, body: bytes, *, whole: bool) -> None:
        self.body, self._whole = body, whole
        self.when_gone: Callable[[], None] | None = None
        self.responses: list[tuple[int, bytes]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def respond(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        assert headers[0] == (b"content-type", b"application/json")
        if self._whole:
            self.responses.append((status, body))
        return self._whole

    def start(self, answer: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(answer))


class Waiting:
    """The rest of a call: its reply is the result of a future, or is made by a task."""

    def __init__(self, done: asyncio.Future[bytes | None]) -> None:
        self.done = done
        self.finished = self.gone = 0

    def caller_gone(self) -> None:
        self.gone += 1

    def reply(self) -> Reply | None:
        result = self.done.result()
        return None if result is None else Reply(200, result)

    async def finish(self) -> Reply:
        self.finished += 1
        return Reply(201, await self.done or b"late")


class Served:
    """One request on a route that begins its calls."""

    def __init__(self, body: bytes = b"{}", *, whole: bool = True, begin: begun.Begin | None = None) -> None:
        self.waiting = Waiting(asyncio.get_running_loop().create_future())
        self.offered, self.sent = Offered(body, whole=whole), list[Message]()
        settings = ProxySettings.model_validate({"max_body_bytes": 8})
        self.bodies = Bodies(100)
        proxy = SimpleNamespace(settings=settings, bodies=self.bodies, timers=CoarseTimers())
        scope = {
            "type": "http", "method": "POST", "path": "/x", "query_string": b"", "headers": [],
            "state": {"proxy": proxy}, "extensions": {WHOLE_REQUEST: self.offered},
        }  # fmt: skip

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            self.sent.append(message)

        async def handle(call: Call) -> Reply:
            return Reply(202, await call.body(8))

        async def app(*_: Any) -> None:
            raise AssertionError("the route is hot")

        route = HotRoute("POST", "/x", handle, begin or (lambda _call, _body: self.waiting))
        self.answer = HotPath(app, [route])(scope, receive, send)

    @property
    def status(self) -> int:
        """Status of a response that was sent as messages."""
        status: int = self.sent[0]["status"]
        return status

    def held(self) -> int:
        """Bytes of bodies that count."""
        return self.bodies._held


async def test_a_call_is_answered_from_a_callback() -> None:
    served = Served()
    assert served.answer is ANSWERED_LATER
    assert served.held() == 2
    served.waiting.done.set_result(b"ok")
    await asyncio.sleep(0)
    assert served.offered.responses == [(200, b"ok")]
    assert (served.offered.tasks, served.waiting.finished, served.held()) == ([], 0, 0)
    assert served.offered.when_gone is None


@pytest.mark.parametrize("error", [Conflict(what="taken"), None])
async def test_a_task_finishes_what_has_no_reply_at_once(error: Exception | None) -> None:
    served = Served()
    if error is None:
        served.waiting.done.set_result(None)
    else:
        served.waiting.done.set_exception(error)
    await asyncio.sleep(0)
    (task,) = served.offered.tasks
    await task
    assert (served.status, served.held()) == (201 if error is None else 409, 0)
    assert not served.offered.responses


async def test_a_task_sends_what_the_server_does_not_send_at_once() -> None:
    served = Served(whole=False)
    served.waiting.done.set_result(b"ok")
    await asyncio.sleep(0)
    (task,) = served.offered.tasks
    await task
    assert (served.status, served.sent[1]["body"], served.waiting.finished, served.held()) == (200, b"ok", 0, 0)


@pytest.mark.parametrize("cause", ["slow", "gone"])
async def test_a_call_that_takes_long_or_whose_caller_goes_gets_one_task(
    monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    monkeypatch.setattr(begun, "TASK_AFTER_S", 0.01 if cause == "slow" else 60.0)
    served = Served()
    if cause == "gone":
        assert served.offered.when_gone is not None
        served.offered.when_gone()
    async with asyncio.timeout(10):
        while not served.offered.tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    served.waiting.done.set_result(b"ok")
    await asyncio.wait(served.offered.tasks)
    assert (len(served.offered.tasks), served.waiting.finished, served.status) == (1, 1, 201)
    assert (served.offered.responses, served.held(), served.waiting.gone) == ([], 0, int(cause == "gone"))


async def test_a_call_with_a_task_hears_at_once_that_its_caller_goes() -> None:
    served = Served()
    served.waiting.done.set_result(None)
    await asyncio.sleep(0)
    assert served.offered.when_gone is not None
    served.offered.when_gone()
    assert (len(served.offered.tasks), served.waiting.gone) == (1, 1)
    await asyncio.wait(served.offered.tasks)


def _invalid(_call: Call, _body: bytes) -> begun.BegunCall | None:
    raise BadRequest(what="no")


@pytest.mark.parametrize("begin", [lambda _call, _body: None, _invalid])
async def test_the_handler_answers_what_has_not_begun(begin: begun.Begin) -> None:
    served = Served(begin=begin)
    assert served.answer is not ANSWERED_LATER
    await served.answer
    assert (served.status, served.sent[1]["body"], served.held()) == (202, b"{}", 0)


async def test_a_body_that_is_too_long_does_not_begin() -> None:
    served = Served(b"123456789")
    await served.answer
    assert (served.status, served.waiting.finished, served.held()) == (413, 0, 0)
