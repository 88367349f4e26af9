"""Recorded calls through the router, read as training rows through the proxy. The engine's own log is the judge."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from services.trajectory_router.recording import writer as writing
from tests.services.trajectory_router.recording.mesh import USER, Mesh, approximately, running_mesh
from tests.services.trajectory_router.recording.token_engine import TokenEngine, running_token_engine


@pytest.fixture
async def mesh(redis_url: str, database_url: str) -> AsyncIterator[Mesh[TokenEngine]]:
    async with running_token_engine() as engine, running_mesh(redis_url, database_url, engine) as running:
        yield running


# ---- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_an_episode_is_one_row_of_what_the_engine_has_sampled(mesh: Mesh[TokenEngine], *, stream: bool) -> None:
    """Turns with text of tools between them. The chat template of this engine keeps what it has sampled."""
    trajectory = await mesh.opened()
    messages = [USER]
    for turn in range(3):
        async with mesh.calling(trajectory, messages=messages, stream=stream, temperature=0.5) as response:
            assert response.status == 200
            await response.read()
        messages = [{"role": "user", "content": _text(mesh.engine, turn) + f"<tool>{turn}"}]
    (row,) = await mesh.lines(trajectory)
    log = mesh.engine.log
    assert row["token_ids"] == log[-1].prompt + log[-1].output
    expected_mask: list[int] = []
    expected_logprobs: list[float] = []
    for call in log:
        expected_mask += [0] * (len(call.prompt) - len(expected_mask)) + [1] * len(call.output)
        expected_logprobs += [0.0] * (len(call.prompt) - len(expected_logprobs)) + call.logprobs
    assert row["loss_mask"] == expected_mask
    assert row["logprobs"] == approximately(expected_logprobs)
    assert (row["logprobs_of"], row["temperature"], row["prompt_len"]) == ("raw", 0.5, len(log[0].prompt))
    assert len(row["calls"]) == 3
    assert [one["version"] for one in row["versions"]] == ["v1"] * 3
    for span, call in zip(row["versions"], log, strict=True):
        assert row["token_ids"][span["start"] : span["end"]] == call.output


def _text(engine: TokenEngine, turn: int) -> str:
    """A text whose ids extend those of a turn: the engine's own, without what it adds itself."""
    call = engine.log[turn]
    return bytes(call.prompt + call.output).decode().removeprefix("<user>")


async def test_a_prompt_that_does_not_extend_begins_another_row(mesh: Mesh[TokenEngine]) -> None:
    trajectory = await mesh.opened()
    await mesh.called(trajectory)
    mesh.engine.version = "v2"
    await mesh.called(trajectory, messages=[{"role": "user", "content": "other"}])
    rows = await mesh.lines(trajectory)
    assert [row["token_ids"] for row in rows] == [call.prompt + call.output for call in mesh.engine.log]
    assert [row["versions"][0]["version"] for row in rows] == ["v1", "v2"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_gets_what_it_gets_without_a_record(mesh: Mesh[TokenEngine], *, stream: bool) -> None:
    recorded, plain = await mesh.opened(), await mesh.opened(record=None)
    answers = []
    for trajectory in (recorded, plain):
        async with mesh.calling(trajectory, stream=stream) as response:
            answers.append(await response.read())
            assert "content-encoding" not in response.headers
    first, second = answers
    assert _parsed(first, stream) == _parsed(second, stream)
    assert "return_token_ids" not in mesh.engine.bodies[1]
    async with mesh.proxy.get(f"/v1/trajectories/{plain['id']}/tokens") as response:
        assert response.status == 409


def _parsed(body: bytes, stream: bool) -> list[Any]:
    if not stream:
        return [json.loads(body)]
    events = body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


async def test_what_the_client_has_requested_itself_stays(mesh: Mesh[TokenEngine]) -> None:
    trajectory = await mesh.opened()
    answer = await mesh.called(trajectory, return_token_ids=True, logprobs=True)
    (choice,) = answer["choices"]
    assert choice["token_ids"] == mesh.engine.log[0].output
    assert [one["logprob"] for one in choice["logprobs"]["content"]] == mesh.engine.log[0].logprobs
    assert "weight_versions" not in choice
    assert answer["prompt_token_ids"] == mesh.engine.log[0].prompt


async def test_a_call_at_the_common_address_is_recorded_for_its_tenant_alone(mesh: Mesh[TokenEngine]) -> None:
    trajectory = await mesh.opened()
    for tenant, records in (("default", 1), ("other", 1), ("default", 2)):
        headers = {"x-trajectory-id": trajectory["id"], "treadle-tenant": tenant}
        body = {"model": "tiny", "messages": [USER]}
        async with mesh.router.post("/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200
        assert len(await mesh.lines(trajectory, "/calls")) == records


async def test_a_route_without_ids_is_recorded_as_such(mesh: Mesh[TokenEngine]) -> None:
    trajectory = await mesh.opened()
    async with mesh.calling(trajectory, "/messages") as response:
        assert await response.read() == b'{"type": "message", "content": []}', "byte for byte"
    (call,) = await mesh.lines(trajectory, "/calls")
    assert (call["status"], call["route"]) == ("no-ids", "/v1/messages")
    assert "/v1/messages" in call["reason"]
    assert await mesh.lines(trajectory) == []


async def test_an_answer_with_too_few_ids_is_masked(mesh: Mesh[TokenEngine]) -> None:
    mesh.engine.forgets_ids = True
    trajectory = await mesh.opened()
    await mesh.called(trajectory)
    (row,) = await mesh.lines(trajectory)
    assert set(row["loss_mask"]) == {0}
    assert "3 ids of 4 tokens" in row["masked"][0]["reason"]


# ---- ends ------------------------------------------------------------------------------------------------------------


async def test_a_client_that_leaves_has_a_masked_call_with_the_tokens_so_far(mesh: Mesh[TokenEngine]) -> None:
    mesh.engine.pause_s = 0.05
    trajectory = await mesh.opened()
    async with mesh.calling(trajectory, stream=True, max_tokens=1000) as response:
        for _ in range(3):
            await response.content.readline()
    (row,) = await mesh.written(trajectory)
    (call,) = mesh.engine.log
    count = len(row["token_ids"]) - row["prompt_len"]
    assert 1 <= count <= len(call.output)
    assert row["token_ids"] == call.prompt + call.output[:count]
    assert not any(row["loss_mask"])
    assert row["masked"][0]["reason"] == "aborted: its caller has gone"


async def test_a_broken_answer_is_masked_and_its_client_gets_no_end(mesh: Mesh[TokenEngine]) -> None:
    mesh.engine.break_after = 2
    trajectory = await mesh.opened()
    with pytest.raises(aiohttp.ClientPayloadError):
        async with mesh.calling(trajectory, stream=True) as response:
            await response.read()
    (row,) = await mesh.written(trajectory)
    assert row["token_ids"] == mesh.engine.log[0].prompt + mesh.engine.log[0].output
    assert "broken" in row["masked"][0]["reason"]


async def test_an_answer_that_breaks_before_its_client_has_a_byte_is_had_from_another_worker(
    mesh: Mesh[TokenEngine],
) -> None:
    """The record has the answer that the client got."""
    mesh.engine.breaks_whole = True
    async with running_token_engine() as other:
        async with mesh.router.post("/workers", json={"url": other.url}) as response:
            assert response.status == 202
        for _ in range(4):
            trajectory = await mesh.opened()
            await mesh.called(trajectory)
            (row,) = await mesh.lines(trajectory)
            assert row["token_ids"] == other.log[-1].prompt + other.log[-1].output
            assert row["masked"] == []
    assert mesh.engine.log, "it was called"


async def test_the_end_of_an_answer_waits_for_its_record(
    mesh: Mesh[TokenEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a client reads before the end of a stream is not held."""
    gate = asyncio.Event()
    append = writing.TokenWriter.append

    async def gated(self: writing.TokenWriter, *args: Any) -> None:
        await gate.wait()
        await append(self, *args)

    monkeypatch.setattr(writing.TokenWriter, "append", gated)
    trajectory = await mesh.opened()
    async with mesh.calling(trajectory, stream=True) as response:
        received = b""
        while received.count(b"data: ") < 4:
            received += await response.content.readany()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                received += await response.content.readany()
        assert b"[DONE]" not in received
        assert await mesh.lines(trajectory) == []
        gate.set()
        received += await response.content.read()
        assert received.endswith(b"data: [DONE]\n\n")
    assert len(await mesh.lines(trajectory)) == 1


# ---- access ----------------------------------------------------------------------------------------------------------


async def test_another_tenant_has_no_such_record(mesh: Mesh[TokenEngine]) -> None:
    trajectory = await mesh.opened()
    await mesh.called(trajectory)
    for method, what in (("GET", ""), ("GET", "/calls"), ("DELETE", "")):
        path = f"/v1/trajectories/{trajectory['id']}/tokens{what}"
        async with mesh.proxy.request(method, path, headers={"treadle-tenant": "other"}) as response:
            assert response.status == 404
    assert len(await mesh.lines(trajectory)) == 1


async def test_a_record_outlives_its_trajectory_and_is_deleted_on_request(mesh: Mesh[TokenEngine]) -> None:
    trajectory = await mesh.opened()
    await mesh.called(trajectory)
    async with mesh.proxy.delete(f"/v1/trajectories/{trajectory['id']}") as response:
        assert (await response.json())["record"] == "tokens"
    async with mesh.calling(trajectory) as response:
        assert response.status == 403
    headers = {"x-trajectory-id": trajectory["id"]}
    async with mesh.router.post("/v1/chat/completions", json={"model": "tiny"}, headers=headers) as response:
        assert response.status == 403, "its calls are recorded or refused"
    assert len(await mesh.lines(trajectory)) == 1
    for _ in range(2):
        async with mesh.proxy.delete(f"/v1/trajectories/{trajectory['id']}/tokens") as response:
            assert response.status == 204
    assert await mesh.lines(trajectory) == []


async def test_a_trajectory_with_another_record_is_rejected(mesh: Mesh[TokenEngine]) -> None:
    async with mesh.proxy.post("/v1/trajectories", json={"record": "text"}) as response:
        assert response.status == 422
        assert "tokens" in (await response.json())["detail"]


async def test_without_postgres_a_recorded_call_is_503_before_it_starts(redis_url: str) -> None:
    absent = "postgresql+asyncpg://nobody@127.0.0.1:9/none"
    async with running_token_engine() as engine, running_mesh(redis_url, absent, engine) as mesh:
        trajectory = await mesh.opened()
        async with mesh.calling(trajectory) as response:
            assert response.status == 503
            assert int(response.headers["retry-after"]) >= 1
        assert engine.bodies == []
        async with mesh.proxy.get(f"/v1/trajectories/{trajectory['id']}/tokens") as response:
            assert response.status == 503
        await mesh.called(await mesh.opened(record=None))
