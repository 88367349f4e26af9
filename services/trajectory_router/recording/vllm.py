"""vLLM: `return_token_ids`, log-probabilities before the temperature, and `return_weight_versions`.

Chat and completions report the ids of prompt and output. `/inference/v1/generate` takes and gives ids itself.
`top_logprobs: null` would ask the engine for no log-probability, so it is 0 where a client gives none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from services.trajectory_router.recording.reader import (
    Change,
    Collected,
    Fields,
    Requested,
    Sampled,
    SampledChoice,
    integers,
    logprob_entries,
    logprobs_of,
    objects,
    spans,
)
from shared.runtime.http_streams import StreamClient
from shared.runtime.streamed_answer import Header
from shared.tokens.calls import LogprobMeaning

PROMPT: Final = "prompt_token_ids"
VERSIONS: Final = "weight_versions"


class VllmReader:
    """Reads `/v1/chat/completions` and `/v1/completions`."""

    logprobs_of: LogprobMeaning = "raw"

    def __init__(self, fields: Fields, *, chat: bool) -> None:
        self._fields = fields
        self._chat = chat
        self._usage = Requested(fields)
        self._collected = Collected()
        self._ids = fields.get("return_token_ids") is not True
        """We have requested them, not the client."""
        self._versions = fields.get("return_weight_versions") is not True
        given = fields.get("logprobs")
        self._logprobs = given is not True if chat else type(given) is not int

    def request(self) -> tuple[Fields, Sequence[Header]]:
        body = {**self._fields, "return_token_ids": True, "return_weight_versions": True, **self._usage.fields()}
        if self._chat:
            body |= {"logprobs": True, "top_logprobs": body.get("top_logprobs") or 0}
        elif self._logprobs:
            body["logprobs"] = 1
        return body, ()

    def take(self, event: Fields) -> Change:
        collected, changed = self._collected, False
        if isinstance(event.get("error"), dict | str):
            collected.error = "the engine reports an error"
            return "kept"
        collected.usage(event)
        if self._usage.drops(event):
            return "dropped"
        changed |= self._take_prompt(event)
        for entry in objects(event.get("choices")):
            changed |= self._take_prompt(entry)
            changed |= self._take_choice(entry, collected.choice(entry))
        return "changed" if changed else "kept"

    def _take_prompt(self, holder: Fields) -> bool:
        prompt = integers(holder.get(PROMPT))
        if prompt is not None:
            self._collected.prompt = prompt
        return self._ids and holder.pop(PROMPT, _ABSENT) is not _ABSENT

    def _take_choice(self, entry: Fields, choice: SampledChoice) -> bool:
        changed = False
        choice.ids += integers(entry.get("token_ids")) or ()
        choice.logprobs += logprobs_of(logprob_entries(entry)) if self._chat else _completion_logprobs(entry)
        choice.versions = spans(entry.get(VERSIONS)) or choice.versions
        self._collected.finish(choice, entry.get("finish_reason"))
        if self._ids:
            changed |= entry.pop("token_ids", _ABSENT) is not _ABSENT
        if self._versions:
            changed |= entry.pop(VERSIONS, _ABSENT) is not _ABSENT
        if self._logprobs and entry.get("logprobs") is not None:
            entry["logprobs"] = None  # as without the request
            changed = True
        return changed

    async def sampled(self, engines: StreamClient, url: str) -> Sampled:  # noqa: ARG002  # the protocol's
        return self._collected.sampled()


class VllmGenerateReader:
    """Reads `/inference/v1/generate`."""

    logprobs_of: LogprobMeaning = "raw"

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._collected = Collected(prompt=integers(fields.get("token_ids")))
        params = fields.get("sampling_params")
        self._params: Fields = params if isinstance(params, dict) else {}
        self._logprobs = type(self._params.get("logprobs")) is not int
        self._versions = fields.get("return_weight_versions") is not True

    def request(self) -> tuple[Fields, Sequence[Header]]:
        params = {**self._params, "logprobs": 1} if self._logprobs else self._params
        return {**self._fields, "sampling_params": params, "return_weight_versions": True}, ()

    def take(self, event: Fields) -> Change:
        changed = False
        self._collected.usage(event)
        for entry in objects(event.get("choices")):
            choice = self._collected.choice(entry)
            choice.ids += integers(entry.get("token_ids")) or ()
            choice.logprobs += logprobs_of(logprob_entries(entry))
            choice.versions = spans(entry.get(VERSIONS)) or choice.versions
            self._collected.finish(choice, entry.get("finish_reason"))
            if self._versions:
                changed |= entry.pop(VERSIONS, _ABSENT) is not _ABSENT
            if self._logprobs and entry.get("logprobs") is not None:
                entry["logprobs"] = None
                changed = True
        return "changed" if changed else "kept"

    async def sampled(self, engines: StreamClient, url: str) -> Sampled:  # noqa: ARG002  # the protocol's
        return self._collected.sampled()


_ABSENT: Final = object()


def _completion_logprobs(entry: Fields) -> list[float]:
    logprobs = entry.get("logprobs")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    return logprobs_of([{"logprob": value} for value in values]) if isinstance(values, list) else []
