"""The record of a real model's calls, with tools and several turns: the front's own log of its engine is the judge.

Gemma samples its answers, some of them as calls of a tool. What a client sends back is text that is tokenised again, so
a prompt may or may not extend the last one: the oracle below reads from the log alone which it is.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.services.trajectory_router.engines.call_log import LoggedCall
from tests.services.trajectory_router.engines.llamacpp import LlamaWorker
from tests.services.trajectory_router.engines.prompts import TOOL
from tests.services.trajectory_router.engines.vllm_front import VllmFront, running_front
from tests.services.trajectory_router.engines.waiting import until
from tests.services.trajectory_router.recording.mesh import Mesh, approximately, running_mesh

Message = dict[str, Any]
TURNS = 6
ASKED: Message = {"role": "user", "content": "Repair the loom. Weft, warp, shed."}


@pytest.fixture
async def mesh(llamacpp: LlamaWorker, redis_url: str, database_url: str) -> AsyncIterator[Mesh[VllmFront]]:
    async with running_front(llamacpp.url) as front, running_mesh(redis_url, database_url, front) as running:
        yield running


# ---- oracle ----------------------------------------------------------------------------------------------------------


@dataclass
class Expected:
    """A row as the log implies it."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    versions: list[tuple[str, int, int]]
    calls: int


def sampled(front: VllmFront) -> list[LoggedCall]:
    """Calls of the test, without canaries of the router."""
    return [call for call in front.log if ASKED["content"] in json.dumps(call.request)]


def expected_rows(log: Sequence[LoggedCall]) -> list[Expected]:
    """Chain calls by their ids. A row is a chain that no later call extends; a token is trained in its first row."""
    wholes = [call.prompt_ids + call.output_ids for call in log]
    before: list[int | None] = []
    for number, call in enumerate(log):
        extended = [other for other in range(number) if call.prompt_ids[: len(wholes[other])] == wholes[other]]
        before.append(max(extended, key=lambda other: (len(wholes[other]), other), default=None))
    rows: list[Expected] = []
    trained: set[int] = set()
    for last in range(len(log)):
        if last in before:
            continue
        length = len(wholes[last])
        row = Expected(wholes[last], [0] * length, [0.0] * length, [], 0)
        chain = [last]
        while (link := before[chain[-1]]) is not None:
            chain.append(link)
        for number in reversed(chain):
            call, begin = log[number], len(log[number].prompt_ids)
            row.calls += 1
            row.versions += [(one.version, begin + one.start, begin + one.end) for one in call.versions]
            if number not in trained:
                row.mask[begin : begin + len(call.output_ids)] = [1] * len(call.output_ids)
                row.logprobs[begin : begin + len(call.output_ids)] = call.logprobs
                trained.add(number)
        rows.append(row)
    return rows


# ---- episodes --------------------------------------------------------------------------------------------------------


async def turn(mesh: Mesh[VllmFront], trajectory: Message, messages: list[Message], rng: random.Random) -> Message:
    """Make one call, streamed or not, with the tool forced or not. Return the message of its answer."""
    forced = len(messages) == 1 or rng.random() < 0.5
    body: Message = {
        "messages": messages,
        "tools": [TOOL],
        "tool_choice": "required" if forced else "auto",
        "stream": rng.random() < 0.5,
        "max_tokens": 60 if forced else rng.choice([5, 30]),
        "temperature": 1,
        "seed": rng.randrange(1 << 30),
    }
    async with mesh.calling(trajectory, **body) as response:
        text = await response.text()
        assert response.status == 200, text
    for hidden in ("token_ids", "weight_versions", '"logprob"'):
        assert hidden not in text, "the client gets what it has requested"
    if not body["stream"]:
        return dict(json.loads(text)["choices"][0]["message"])
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    called = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    content = "".join(delta.get("content") or "" for delta in deltas)
    message: Message = {"role": "assistant", "content": content or None}
    return message | ({"tool_calls": called} if called else {})


def returned(message: Message) -> Message:
    """What an agent adds after an answer: the text of its tool, or of its user."""
    if calls := message.get("tool_calls"):
        return {"role": "tool", "tool_call_id": calls[0]["id"], "content": "bash: ok"}
    return {"role": "user", "content": "Go on."}


@pytest.mark.parametrize("seed", range(4))
async def test_rows_are_what_the_engine_has_sampled(mesh: Mesh[VllmFront], seed: int) -> None:
    rng = random.Random(seed)
    trajectory = await mesh.opened()
    messages: list[Message] = [ASKED]
    for number in range(TURNS):
        mesh.engine.version = f"v{number // 2}"
        message = await turn(mesh, trajectory, messages, rng)
        if rng.random() < 0.2:
            message["content"] = "A summary of the work so far."  # agents rewrite their history, too
        messages += [message, returned(message)]

    log = sampled(mesh.engine)
    assert len(log) == TURNS
    assert any(call.finish_reason == "tool_calls" for call in log)
    rows, expected = await mesh.lines(trajectory), expected_rows(log)
    assert [row["token_ids"] for row in rows] == [one.ids for one in expected]
    assert [row["loss_mask"] for row in rows] == [one.mask for one in expected]
    assert [len(row["calls"]) for row in rows] == [one.calls for one in expected]
    for row, one in zip(rows, expected, strict=True):
        assert row["logprobs"] == approximately(one.logprobs)
        assert [(span["version"], span["start"], span["end"]) for span in row["versions"]] == one.versions
        assert (row["logprobs_of"], row["temperature"]) == ("raw", 1.0)
    assert sum(sum(row["loss_mask"]) for row in rows) == sum(len(call.output_ids) for call in log)


async def test_a_turn_with_text_of_a_tool_extends_the_last_one(mesh: Mesh[VllmFront]) -> None:
    """A greedy answer is tokenised as it was sampled, so one row has all turns."""
    trajectory = await mesh.opened()
    messages: list[Message] = [ASKED]
    for _ in range(3):
        answer = await mesh.called(trajectory, messages=messages, tools=[TOOL], temperature=0, max_tokens=6)
        (choice,) = answer["choices"]
        said = {"role": "assistant", "content": choice["message"]["content"]}
        messages += [said, {"role": "tool", "tool_call_id": "call-1", "content": "ok"}]
    (row,) = await mesh.lines(trajectory)
    (expected,) = expected_rows(sampled(mesh.engine))
    assert (row["token_ids"], row["loss_mask"], expected.calls) == (expected.ids, expected.mask, 3)


async def test_weights_that_change_during_a_call_are_two_spans(mesh: Mesh[VllmFront]) -> None:
    trajectory = await mesh.opened()
    mesh.engine.version = "old"
    call = asyncio.create_task(mesh.called(trajectory, messages=[ASKED], ignore_eos=True, max_tokens=40))
    await until(lambda: sampled(mesh.engine) and len(sampled(mesh.engine)[0].output_ids) > 3)
    mesh.engine.version = "new"
    await call
    (row,), (expected,) = await mesh.lines(trajectory), expected_rows(sampled(mesh.engine))
    assert [(span["version"], span["start"], span["end"]) for span in row["versions"]] == expected.versions
    assert [version for version, _, _ in expected.versions] == ["old", "new"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_the_engine_aborts_is_masked_with_what_was_sampled(
    mesh: Mesh[VllmFront], *, stream: bool
) -> None:
    trajectory = await mesh.opened()

    async def called() -> None:
        async with mesh.calling(trajectory, messages=[ASKED], stream=stream, max_tokens=1500) as response:
            assert response.status == 200
            await response.read()

    call = asyncio.create_task(called())
    await until(lambda: sampled(mesh.engine) and len(sampled(mesh.engine)[0].output_ids) > 3)
    mesh.engine.abort()
    await call
    (row,), (logged,) = await mesh.lines(trajectory), sampled(mesh.engine)
    assert logged.finish_reason == "abort"
    assert row["token_ids"] == logged.prompt_ids + logged.output_ids
    assert not any(row["loss_mask"])
    assert row["masked"][0]["reason"].startswith("aborted")
