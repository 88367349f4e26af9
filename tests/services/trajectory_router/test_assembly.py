"""Whole answers from streamed ones."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trajectory_router.assembled_answers import Unassembled
from services.trajectory_router.assembly import CHAT as CHAT_ROUTE
from services.trajectory_router.assembly import Assembly, streamed

CHAT = (
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"created":7,'
    b'"id":"c1","model":"m","object":"chat.completion.chunk"}\n\n'
    b": ping\n\n"
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"He"},"logprobs":{"content":[{"id":1}]}}],'
    b'"id":"c1","object":"chat.completion.chunk"}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":"llo"},"logprobs":{"content":[{"id":2}]}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"t","type":"function","function":'
    b'{"name":"ls","arguments":"{\\"a"}}]}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\\":1}"}}]}}]}\n\n'
    b'data: {"choices":[{"finish_reason":"tool_calls","index":0,"delta":{}}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2},"timings":{"predicted_n":2}}\n\n'
    b"data: [DONE]\n\n"
)
WHOLE = {
    "id": "c1",
    "object": "chat.completion",
    "created": 7,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "Hello",
                "tool_calls": [{"id": "t", "type": "function", "function": {"name": "ls", "arguments": '{"a":1}'}}],
            },
            "logprobs": {"content": [{"id": 1}, {"id": 2}]},
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    "timings": {"predicted_n": 2},
}


@given(st.lists(st.integers(0, len(CHAT)), max_size=12))
def test_a_stream_cut_anywhere_gives_the_same_answer(cuts: list[int]) -> None:
    assembly, marks = Assembly(), [0, *sorted(cuts), len(CHAT)]
    for begin, end in pairwise(marks):
        assembly.feed(CHAT[begin:end])
    assert json.loads(assembly.whole()) == WHOLE


def test_texts_of_completions_are_put_together_by_choice() -> None:
    assembly = Assembly()
    for index, text in ((0, "a"), (1, "x"), (0, "b"), (1, "y")):
        event: dict[str, Any] = {"object": "text_completion", "choices": [{"index": index, "text": text}]}
        assembly.feed(b"data: " + json.dumps(event).encode() + b"\r\n\r\n")
    assembly.feed(b"data: [DONE]\n\n")
    whole = json.loads(assembly.whole())
    assert [choice["text"] for choice in whole["choices"]] == ["ab", "xy"]
    assert whole["object"] == "text_completion"


@pytest.mark.parametrize("events", [b"", CHAT[:-14], b'data: {"error": {"message": "no"}}\n\n', b"data: {\n\n"])
def test_a_stream_that_ends_early_is_no_answer(events: bytes) -> None:
    def answer() -> bytes:
        assembly = Assembly()
        assembly.feed(events)
        return assembly.whole()

    with pytest.raises(Unassembled):
        answer()


def test_a_call_is_streamed_with_its_usage_and_all_else_as_it_was() -> None:
    body = json.loads(streamed(b'{"model": "m", "temperature": 0.5, "stream_options": {"x": 1}}', CHAT_ROUTE))
    options = {"x": 1, "include_usage": True}
    assert body == {"model": "m", "temperature": 0.5, "stream": True, "stream_options": options}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_routes_without_options_of_streams_get_none(path: str) -> None:
    assert json.loads(streamed(b'{"model": "m"}', path)) == {"model": "m", "stream": True}


MESSAGE: list[dict[str, Any]] = [
    {
        "type": "message_start",
        "message": {"id": "m1", "type": "message", "role": "assistant", "content": [], "stop_reason": None,
                    "usage": {"input_tokens": 7, "output_tokens": 1}},
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "so"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "ping"},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "He"}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "llo"}},
    {"type": "content_block_start", "index": 2,
     "content_block": {"type": "tool_use", "id": "t", "name": "ls", "input": {}}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"a"'}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": ": 1}"}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
     "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
]  # fmt: skip


def assembled(path: str, events: list[dict[str, Any]]) -> Any:
    assembly = Assembly(path)
    for event in events:
        assembly.feed(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    return json.loads(assembly.whole())


def test_blocks_of_a_message_are_put_together() -> None:
    assert assembled("/v1/messages", MESSAGE) == {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "so", "signature": "s"},
            {"type": "text", "text": "Hello"},
            {"type": "tool_use", "id": "t", "name": "ls", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 7, "output_tokens": 9},
    }


@pytest.mark.parametrize(
    "events",
    [
        MESSAGE[:-1],
        [MESSAGE[2]],
        [{"type": "error", "error": {"type": "overloaded_error"}}],
        [MESSAGE[9], MESSAGE[10], MESSAGE[-1]],
    ],
)
def test_a_broken_message_is_no_answer(events: list[dict[str, Any]]) -> None:
    with pytest.raises(Unassembled):
        assembled("/v1/messages", events)


def test_the_last_event_of_a_response_is_the_whole_answer() -> None:
    response = {"id": "r1", "object": "response", "output": [{"type": "message"}], "error": None}
    begun = {"type": "response.created", "response": {"id": "r1", "output": []}}
    delta = {"type": "response.output_text.delta", "delta": "He"}
    ended = {"type": "response.completed", "response": response}
    assert assembled("/v1/responses", [begun, delta, ended]) == response
    with pytest.raises(Unassembled):
        assembled("/v1/responses", [begun, delta])
