"""`Treadle` is `AsyncTreadle` without `await`."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import treadle
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.blocking import LoopThread, Trajectories, Treadle, _Call
from treadle.client.errors import BadRequest, NotFound
from treadle.client.trajectories import AsyncTrajectories

OWN = {"close", "__enter__", "__exit__", "__init__", "quota"}
VIEW = {
    "id": "b", "task": "t", "tenant": "default", "state": "complete", "size": 2, "submitted": 2, "answered": 2,
    "opened_at": 0, "first_arrival_at": 0, "ended_at": 1.0, "expected_completion_at": None, "extra_delay_s": None,
    "overhead_s": None, "stages": [],
}  # fmt: skip
RESULTS = (
    b'{"cursor":"1-0","id":"r0","state":"finished","request_id":"0","ended":"ok","passed":true,"score":1.0}\n'
    b'{"cursor":"2-0","id":"r1","state":"finished","request_id":"1","ended":"ok","passed":false,"score":0.0}\n'
)


class FakeProxy:
    """Server of one batch of two requests, which can be cancelled."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.reading = threading.Event()
        self.silent = False
        self.opened = False

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/tasks/{task}/batches", self.open)
        app.router.add_get("/v1/batches/{batch}", self.view)
        app.router.add_delete("/v1/batches/{batch}", self.cancel)
        app.router.add_get("/v1/batches/{batch}/results", self.results)
        app.router.add_post("/v1/rewards/bulk", self.bulk)
        app.router.add_get("/v1/tasks/{task}", self.no_task)
        return app

    async def open(self, request: web.Request) -> web.Response:
        self.opened = True
        return await self.view(request)

    async def view(self, request: web.Request) -> web.Response:
        return web.json_response(VIEW)

    async def cancel(self, request: web.Request) -> web.Response:
        self.cancelled.set()
        return web.json_response(VIEW)

    async def results(self, request: web.Request) -> web.StreamResponse:
        self.reading.set()
        response = web.StreamResponse()
        await response.prepare(request)
        if self.silent:
            await asyncio.sleep(60)
        if not request.query["after"]:
            await response.write(RESULTS)
        return response

    async def bulk(self, request: web.Request) -> web.Response:
        return web.json_response({"accepted": 2, "repeated": 0, "rejected": []})

    async def no_task(self, request: web.Request) -> web.Response:
        problem = {"type": "https://treadle.example/problems/not-found", "status": 404, "detail": "no task 'u'"}
        return web.json_response(problem, status=404)


@pytest.fixture
def proxy() -> FakeProxy:
    return FakeProxy()


@pytest.fixture
def client(proxy: FakeProxy) -> Iterator[Treadle]:
    async def started() -> TestServer:
        server = TestServer(proxy.app(), shutdown_timeout=0.1)
        await server.start_server()
        return server

    thread = LoopThread()
    server = thread.call(started())
    with Treadle(str(server.make_url("/"))) as client:
        yield client
    thread.call(server.close())
    thread.close()


@pytest.mark.parametrize(("blocking", "twin"), [(Treadle, AsyncTreadle), (Trajectories, AsyncTrajectories)])
def test_the_twins_have_the_same_methods_parameters_and_documentation(blocking: type[Any], twin: type[Any]) -> None:
    names = {name for name in vars(twin) if not name.startswith("_") and callable(getattr(twin, name))}
    assert {name for name in vars(blocking) if not name.startswith("_")} - {"url"} == names
    for name in names - OWN:
        ours, theirs = getattr(blocking, name), getattr(twin, name)
        assert ours.__doc__ == theirs.__doc__
        assert inspect.signature(ours) == inspect.signature(theirs)
        assert theirs.__doc__


def test_a_batch_is_graded_with_its_progress(client: Treadle) -> None:
    seen: list[tuple[str, int]] = []

    class ProgressRecorder:
        def submitted(self, requests: int) -> None:
            seen.append(("submitted", requests))

        def answered(self, results: Any) -> None:
            seen.append(("answered", len(results)))

    graded = client.grade("t", [treadle.RewardRequest(), treadle.RewardRequest()], progress=ProgressRecorder())
    assert graded.scores == {"0": 1.0, "1": 0.0}
    assert graded.view.state == "complete"
    assert ("submitted", 2) in seen
    assert sum(count for what, count in seen if what == "answered") == 2


def test_results_are_an_iterator(client: Treadle) -> None:
    assert [one.id for page in client.results("b") for one in page] == ["r0", "r1"]
    for page in client.results("b"):
        if page:
            break


def test_errors_are_raised_in_the_caller(client: Treadle) -> None:
    with pytest.raises(NotFound, match="no task 'u'"):
        client.task("u")


async def test_it_works_beside_a_running_event_loop(client: Treadle) -> None:
    assert client.batch("b").task == "t"


def test_an_interrupt_cancels_the_batch(client: Treadle, proxy: FakeProxy, interruptible: None) -> None:
    def interrupt() -> None:
        assert proxy.reading.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    proxy.silent = True
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        client.grade("t", [treadle.RewardRequest(), treadle.RewardRequest()])
    thread.join()
    assert proxy.cancelled.is_set()


def test_an_interrupt_before_the_call_waits_cancels_the_batch(
    client: Treadle, proxy: FakeProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop may run the call before the calling thread has its future: the machine was busy, or just unlucky."""
    schedule = asyncio.run_coroutine_threadsafe

    def interrupted(coroutine: Any, loop: asyncio.AbstractEventLoop) -> Any:
        schedule(coroutine, loop)
        assert proxy.reading.wait(30)
        raise KeyboardInterrupt

    proxy.silent = True
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.grade("t", [treadle.RewardRequest(), treadle.RewardRequest()])
    assert proxy.cancelled.is_set()


def test_an_interrupt_before_the_call_is_scheduled_ends_it(client: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(coroutine: Any, loop: asyncio.AbstractEventLoop) -> Any:
        coroutine.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.batch("b")
    assert client.batch("b").task == "t"


def test_a_call_that_is_cancelled_before_it_begins_does_not_begin() -> None:
    begun = threading.Event()

    async def work() -> None:
        begun.set()

    call = _Call(work())
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(call.run())
    assert not begun.is_set()


def test_a_call_that_is_cancelled_by_closing_leaves_no_connection(client: Treadle, proxy: FakeProxy) -> None:
    """`grade` cancels its batch when it is cancelled: the connections are closed after that, not before."""
    proxy.silent = True
    failed = list[BaseException]()

    def grade() -> None:
        try:
            client.grade("t", [treadle.RewardRequest(), treadle.RewardRequest()])
        except BaseException as error:  # noqa: BLE001  # whatever ends it
            failed.append(error)

    other = threading.Thread(target=grade)
    other.start()
    assert proxy.reading.wait(30)
    client.close()
    other.join(10)
    assert len(failed) == 1
    assert proxy.cancelled.is_set()
    assert not client._twin._transport._sessions


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match=r"write it as http://127\.0\.0\.1:8700"):
        AsyncTreadle("localhost:8700")


def test_public_names_can_be_imported() -> None:
    assert {name: getattr(treadle, name).__name__ for name in treadle.__all__} == {n: n for n in treadle.__all__}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = treadle.nothing


def test_closing_ends_calls_of_other_threads_and_may_be_repeated() -> None:
    thread = LoopThread()
    begun, failed = threading.Event(), list[BaseException]()

    async def endless() -> None:
        begun.set()
        await asyncio.sleep(3600)

    def call() -> None:
        try:
            thread.call(endless())
        except BaseException as error:  # noqa: BLE001  # whatever ends it
            failed.append(error)

    other = threading.Thread(target=call, daemon=True)
    other.start()
    assert begun.wait(10)
    thread.close()
    other.join(10)
    assert not other.is_alive()
    assert len(failed) == 1
    thread.close()
    with pytest.raises(RuntimeError, match="closed"):
        thread.call(endless())
    client = Treadle("http://127.0.0.1:1")
    with client:
        pass
    client.close()


def test_a_call_from_the_loops_own_thread_is_an_error_instead_of_an_endless_wait() -> None:
    thread = LoopThread()

    async def nested() -> None:
        thread.call(asyncio.sleep(0))

    try:
        with pytest.raises(RuntimeError, match="callback"):
            thread.call(nested())
    finally:
        thread.close()


def test_a_value_that_json_does_not_have_cancels_no_batch_of_an_earlier_run(client: Treadle, proxy: FakeProxy) -> None:
    with pytest.raises(BadRequest, match="request '1' cannot be encoded as JSON"):
        client.grade("t", [treadle.RewardRequest(), treadle.RewardRequest(params={"code": object()})], key="step-7")
    assert not proxy.opened
    assert not proxy.cancelled.is_set()
