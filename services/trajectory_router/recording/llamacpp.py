"""llama.cpp: ids stand in the entries of `logprobs`, and the prompt's are had from two more calls of the engine.

The ids of a prompt are those of `/apply-template` and `/tokenize`; they count only if there are as many as the engine
reports. A streamed call with tools refuses log-probabilities, so it has no ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from services.trajectory_router.recording.reader import (
    Change,
    Collected,
    Fields,
    Requested,
    Sampled,
    integers,
    logprob_entries,
    logprobs_of,
    objects,
)
from shared.runtime.http_streams import StreamClient, Unreachable
from shared.runtime.streamed_answer import AnswerBroken, Header
from shared.runtime.units import Seconds
from shared.tokens.calls import LogprobMeaning

JSON: Final = (b"content-type", b"application/json")
ASKED_S: Final[Seconds] = 10.0
"""Most time of one of the two calls. A prompt whose ids have not come then is recorded without them."""
MOST_BYTES: Final = 64 << 20
"""Bytes of their answers: some 8 for each token."""
_ABSENT: Final = object()


class LlamacppReader:
    """Reads `/v1/chat/completions` and `/v1/completions`."""

    logprobs_of: LogprobMeaning = "raw"

    def __init__(self, fields: Fields, *, chat: bool) -> None:
        self._fields = fields
        self._chat = chat
        self._usage = Requested(fields)
        self._collected = Collected()
        self._logprobs = not fields.get("logprobs")
        """We have requested them, not the client."""
        self._top = chat and not fields.get("top_logprobs")

    def request(self) -> tuple[Fields, Sequence[Header]]:
        body = {**self._fields, **self._usage.fields()}
        if self._chat:
            body |= {"logprobs": True, "top_logprobs": body.get("top_logprobs") or 1}
        elif self._logprobs:
            body["logprobs"] = 1
        return body, ()

    def take(self, event: Fields) -> Change:
        if isinstance(event.get("error"), dict | str):
            self._collected.error = "the engine reports an error"
            return "kept"
        self._collected.usage(event)
        if self._usage.drops(event):
            return "dropped"
        changed = False
        for entry in objects(event.get("choices")):
            choice, entries = self._collected.choice(entry), logprob_entries(entry)
            ids = integers([one.get("id") for one in entries])
            choice.ids += ids or ()
            choice.logprobs += logprobs_of(entries)
            self._collected.finish(choice, entry.get("finish_reason"))
            if self._logprobs:
                changed |= entry.pop("logprobs", _ABSENT) is not _ABSENT
            elif self._top:
                for one in entries:
                    one["top_logprobs"] = []
                changed |= bool(entries)
        return "changed" if changed else "kept"

    async def sampled(self, engines: StreamClient, url: str) -> Sampled:
        if not self._collected.error:
            self._collected.prompt = await self._prompt(engines, url)
        return self._collected.sampled()

    async def _prompt(self, engines: StreamClient, url: str) -> list[int] | None:
        """Return the ids of the prompt; None if the engine does not report them."""
        content = self._fields.get("prompt")
        if self._chat:
            names = ("messages", "tools", "tool_choice", "chat_template_kwargs", "add_generation_prompt")
            asked = {name: self._fields[name] for name in names if name in self._fields}
            content = (await _post(engines, url + "/apply-template", asked)).get("prompt")
        if (ids := integers(content)) is not None:
            return ids
        if not isinstance(content, str):
            return None
        body = {"content": content, "add_special": True, "parse_special": True}
        return integers((await _post(engines, url + "/tokenize", body)).get("tokens"))


async def _post(engines: StreamClient, url: str, body: Fields) -> Fields:
    """Return the JSON object of an answer; empty if there is none."""
    try:
        async with asyncio.timeout(ASKED_S):
            answer = await engines.request("POST", url, [JSON], msgspec.json.encode(body))
            try:
                data = bytearray(answer.first)
                while len(data) <= MOST_BYTES and (part := await answer.next()):
                    data += part
                is_read = answer.status == 200 and len(data) <= MOST_BYTES
                found: Any = msgspec.json.decode(data) if is_read else None
            finally:
                answer.close()
    except (Unreachable, AnswerBroken, TimeoutError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
