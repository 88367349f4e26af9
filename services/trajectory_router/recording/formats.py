"""SampledChoice of the reader of a call: by the engine and the route."""

from __future__ import annotations

from services.trajectory_router.recording.llamacpp import LlamacppReader
from services.trajectory_router.recording.reader import Fields, TokenReader
from services.trajectory_router.recording.sglang import SglangChatReader, SglangGenerateReader
from services.trajectory_router.recording.vllm import VllmGenerateReader, VllmReader

CHAT = "/v1/chat/completions"


def reader_of(engine: str, route: str, fields: Fields) -> TokenReader | str:
    """Return the reader of a call, or the reason why it has no ids.

    Args:
        engine: dialect of the worker.
        route: path of the call.
        fields: body of the call, as the engine would get it without a record.
    """
    match engine, route:
        case "vllm", "/v1/chat/completions" | "/v1/completions":
            return VllmReader(fields, chat=route == CHAT)
        case "vllm", "/inference/v1/generate":
            return VllmGenerateReader(fields)
        case "sglang", "/v1/chat/completions":
            return SglangChatReader(fields)
        case "sglang", "/generate":
            if isinstance(fields.get("text"), list) or any(isinstance(one, list) for one in _list(fields)):
                return "a call with several prompts has no record of its ids"
            return SglangGenerateReader(fields)
        case "llamacpp", "/v1/chat/completions" | "/v1/completions":
            if fields.get("stream") is True and fields.get("tools"):
                return "llama.cpp reports no ids of a streamed call with tools"
            return LlamacppReader(fields, chat=route == CHAT)
    return f"{engine} reports no ids on {route}"


def _list(fields: Fields) -> list[object]:
    ids = fields.get("input_ids")
    return ids if isinstance(ids, list) else []
