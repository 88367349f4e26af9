"""Canaries: both forms, and what is wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from services.gpu_manager.backends.canary import send_canary
from services.gpu_manager.backends.engine_http import EngineHttp
from services.gpu_manager.backends.protocol import EngineError, WrongAnswer
from shared.model_services.entries import EngineCanary
from tests.services.gpu_manager.backends.engines import Engines


@asynccontextmanager
async def answering(engines: Engines, answer: Any, status: int = 200) -> AsyncIterator[tuple[EngineHttp, list[Any]]]:
    """An engine with one answer for every path. Its requests are path and body."""
    received: list[Any] = []

    async def answered(request: web.Request) -> web.Response:
        received.append((request.path, await request.json()))
        return web.json_response(answer, status=status)

    app = web.Application()
    app.router.add_post("/{path:.*}", answered)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield EngineHttp(engines.client, f"http://127.0.0.1:{runner.addresses[0][1]}"), received
    finally:
        await runner.cleanup()


def read(text: str) -> EngineCanary:
    return msgspec.json.decode(text, type=EngineCanary)


async def test_a_prompt_is_completed_at_temperature_0(engines: Engines) -> None:
    async with answering(engines, {"choices": [{"text": "= 4."}]}) as (http, received):
        await send_canary(http, "judge", read('{"prompt": "2+2=", "expect": "4"}'), within_s=5)
        body = {"model": "judge", "max_tokens": 16, "temperature": 0, "prompt": "2+2="}
        assert received == [("/v1/completions", body)]


async def test_a_prompt_can_be_a_chat_with_other_fields(engines: Engines) -> None:
    async with answering(engines, {"choices": [{"message": {"content": "It is 4."}}]}) as (http, received):
        canary = EngineCanary(
            prompt="2+2=", expect="4", path="/v1/chat/completions", body={"max_tokens": 64, "seed": 1}
        )
        await send_canary(http, "judge", canary, within_s=5)
        assert received == [
            (
                "/v1/chat/completions",
                {
                    "model": "judge",
                    "max_tokens": 64,
                    "temperature": 0,
                    "messages": [{"role": "user", "content": "2+2="}],
                    "seed": 1,
                },
            )
        ]


@pytest.mark.parametrize(
    "answer",
    [{"choices": [{"text": "!!!!"}]}, {"choices": [{"message": {"content": None}}]}, {"choices": []}, {}, [], 4],
)
async def test_another_text_is_wrong(engines: Engines, answer: Any) -> None:
    async with answering(engines, answer) as (http, _):
        with pytest.raises(WrongAnswer, match="does not contain '4'"):
            await send_canary(http, "judge", EngineCanary(prompt="2+2=", expect="4"), within_s=5)


async def test_a_refusal_is_an_error_and_no_wrong_answer(engines: Engines) -> None:
    async with answering(engines, {"error": "busy"}, status=503) as (http, _):
        with pytest.raises(EngineError, match="503") as raised:
            await send_canary(http, "judge", EngineCanary(prompt="2+2=", expect="4"), within_s=5)
        assert type(raised.value) is EngineError


SCORES = {"data": [{"score": 0.8301, "a/b": [1.0, 2.0]}], "model": "tiny"}


@pytest.mark.parametrize(
    ("pointer", "expect", "tolerance"),
    [
        ("/data/0/score", 0.83, 0.01),
        ("/data/0/score", 0.8301, 0),
        ("/data/0/a~1b", [1.0, 2.001], 0.01),
        ("/model", "tiny", 0),
    ],
)
async def test_a_value_at_a_pointer_is_compared(engines: Engines, pointer: str, expect: Any, tolerance: float) -> None:
    async with answering(engines, SCORES) as (http, received):
        canary = EngineCanary(
            path="/v1/score", body={"texts": ["a"]}, pointer=pointer, expect=expect, tolerance=tolerance
        )
        await send_canary(http, "judge", canary, within_s=5)
        assert received == [("/v1/score", {"texts": ["a"]})]


@pytest.mark.parametrize(
    ("pointer", "expect"),
    [
        ("/data/0/score", 0.9),
        ("/data/0/score", "0.8301"),
        ("/data/0/a~1b", [1.0]),
        ("/data/0/a~1b", [1.0, 3.0]),
        ("/data/0/a~1b", 1.0),
        ("/model", 1.0),
        ("/data/1/score", 0.83),
        ("/data/-1/score", 0.83),
        ("/data/00/score", 0.8301),
        ("/data/\u0660/score", 0.8301),
        (f"/data/{'9' * 5000}/score", 0.8301),
        ("/none", 0.83),
        ("", 0.83),
    ],
)
async def test_another_value_or_none_is_wrong(engines: Engines, pointer: str, expect: Any) -> None:
    async with answering(engines, SCORES) as (http, _):
        canary = EngineCanary(path="/v1/score", pointer=pointer, expect=expect)
        with pytest.raises(WrongAnswer, match="the canary's answer") as raised:
            await send_canary(http, "judge", canary, within_s=5)
        assert len(raised.value.reason) < 600


async def test_not_a_number_is_wrong(engines: Engines) -> None:
    async with answering(engines, {"score": float("nan")}) as (http, _):
        with pytest.raises(WrongAnswer):
            await send_canary(http, "judge", EngineCanary(path="/v1/score", pointer="/score", expect=0.5), within_s=5)


@pytest.mark.parametrize("expect", [0.5, [0.5]])
async def test_a_number_without_a_float_is_wrong(engines: Engines, expect: Any) -> None:
    number = 10**400
    async with answering(engines, {"score": [number] if isinstance(expect, list) else number}) as (http, _):
        canary = EngineCanary(path="/v1/score", pointer="/score", expect=expect, tolerance=1e308)
        with pytest.raises(WrongAnswer):
            await send_canary(http, "judge", canary, within_s=5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "needs `prompt` and `expect`, or `path`"),
        ('{"prompt": "2+2="}', "needs a text as `expect`, such as '4'"),
        ('{"prompt": "2+2=", "expect": 4}', "needs a text as `expect`, such as '4'"),
        ('{"prompt": "2+2=", "expect": "4", "pointer": "/a"}', "`prompt` or `pointer`, not both"),
        ('{"path": "/v1/score", "expect": 1}', "needs `prompt` and `expect`, or `path`"),
        ('{"path": "v1/score", "pointer": "/a", "expect": 1}', "or `path` \\(such as '/v1/score'\\)"),
        ('{"path": "/v1/score", "pointer": "/a"}', "needs `expect`"),
        ('{"path": "/v1/score", "pointer": "/a", "expect": 1, "tolerance": -1}', "`tolerance` must be at least 0"),
        ('{"prompt": "2+2=", "expects": "4"}', "unknown field `expects`"),
    ],
)
def test_an_unusable_canary_is_refused_with_what_to_write(text: str, message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        read(text)
