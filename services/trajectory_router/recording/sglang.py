"""SGLang: `/generate`, and chat. Log-probabilities are taken after the temperature.

A chat that is not streamed has `return_token_ids`; a streamed one refuses it, and reports the ids in one event before
`[DONE]` on request by a header. Events of `/generate` are cumulative, unless the server streams increments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from services.trajectory_router.recording.reader import (
    Change,
    Collected,
    Fields,
    Requested,
    Sampled,
    SampledChoice,
    integer,
    integers,
    logprob_entries,
    logprobs_of,
    objects,
    spans,
)
from shared.runtime.http_streams import StreamClient
from shared.runtime.streamed_answer import Header
from shared.tokens.calls import LogprobMeaning, VersionSpan

EXTENSIONS: Final[Sequence[Header]] = (
    (b"x-sglext-return-input-ids", b"1"),
    (b"x-sglext-return-output-ids", b"1"),
)
OURS: Final = ("input_token_logprobs", "output_token_logprobs")
"""Fields of `meta_info` that come with `return_logprob`."""
_ABSENT: Final = object()


class SglangChatReader:
    """Reads `/v1/chat/completions`."""

    logprobs_of: LogprobMeaning = "after-temperature"

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._usage = Requested(fields)
        self._collected = Collected()
        self._ids = fields.get("return_token_ids") is not True
        self._logprobs = fields.get("logprobs") is not True

    def request(self) -> tuple[Fields, Sequence[Header]]:
        body = {**self._fields, "logprobs": True, **self._usage.fields()}
        if self._usage.streams:
            return body, EXTENSIONS
        return {**body, "return_token_ids": True}, ()

    def take(self, event: Fields) -> Change:
        if isinstance(event.get("error"), dict | str):
            self._collected.error = "the engine reports an error"
            return "kept"
        self._collected.usage(event)
        if self._usage.drops(event):
            return "dropped"
        extension = event.pop("sglext", None) if self._ids else event.get("sglext")
        if isinstance(extension, dict):
            self._take_extension(extension)
            if self._ids and event.get("choices") == [] and event.get("usage") is None:
                return "dropped"
        changed = extension is not None and self._ids
        for entry in objects(event.get("choices")):
            changed |= self._take_choice(entry)
        self._take_version(event.get("metadata"))
        return "changed" if changed else "kept"

    def _take_extension(self, extension: Fields) -> None:
        self._collected.prompt = integers(extension.get("input_ids")) or self._collected.prompt
        outputs = extension.get("output_ids")
        for index, ids in enumerate(outputs if isinstance(outputs, list) else ()):
            self._collected.choices.setdefault(index, SampledChoice()).ids += integers(ids) or ()

    def _take_choice(self, entry: Fields) -> bool:
        choice, changed = self._collected.choice(entry), False
        choice.ids += integers(entry.get("response_token_ids")) or ()
        self._collected.prompt = integers(entry.get("prompt_token_ids")) or self._collected.prompt
        choice.logprobs += logprobs_of(logprob_entries(entry))
        self._collected.finish(choice, entry.get("finish_reason"))
        if self._ids:
            for name in ("response_token_ids", "prompt_token_ids"):
                changed |= entry.pop(name, _ABSENT) is not _ABSENT
        if self._logprobs and entry.get("logprobs") is not None:
            entry["logprobs"] = None
            changed = True
        return changed

    def _take_version(self, metadata: object) -> None:
        if isinstance(metadata, dict):
            for choice in self._collected.choices.values():
                choice.versions = _versions(metadata, len(choice.ids))

    async def sampled(self, engines: StreamClient, url: str) -> Sampled:  # noqa: ARG002  # the protocol's
        return self._collected.sampled()


class SglangGenerateReader:
    """Reads `/generate` of one prompt."""

    logprobs_of: LogprobMeaning = "after-temperature"

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._collected = Collected(prompt=integers(fields.get("input_ids")))
        self._choice = self._collected.choice({})
        self._logprobs = fields.get("return_logprob") is not True
        self._prompt = fields.get("return_prompt_token_ids") is not True

    def request(self) -> tuple[Fields, Sequence[Header]]:
        start = self._fields.get("logprob_start_len")
        ours = {
            "return_logprob": True,
            "logprob_start_len": -1 if start is None else start,
            "return_prompt_token_ids": True,
        }
        return {**self._fields, **ours}, ()

    def take(self, event: Fields) -> Change:
        meta = event.get("meta_info")
        if not isinstance(meta, dict):
            self._collected.error = "the engine reports an error"
            return "kept"
        collected, choice = self._collected, self._choice
        collected.completion_tokens = integer(meta.get("completion_tokens"), collected.completion_tokens)
        collected.prompt_tokens = integer(meta.get("prompt_tokens"), collected.prompt_tokens)
        collected.prompt = integers(event.get("prompt_token_ids")) or collected.prompt
        total = collected.completion_tokens
        choice.ids = _joined(choice.ids, integers(event.get("output_ids")) or [], total)
        entries = meta.get("output_token_logprobs")
        values = [one[0] if isinstance(one, list) and one else None for one in entries or ()]
        choice.logprobs = _joined(choice.logprobs, logprobs_of([{"logprob": one} for one in values]), total)
        reason = meta.get("finish_reason")
        collected.finish(choice, reason.get("type") if isinstance(reason, dict) else reason)
        choice.versions = _versions(meta, len(choice.ids)) or choice.versions
        changed = False
        if self._prompt:
            changed |= event.pop("prompt_token_ids", _ABSENT) is not _ABSENT
        if self._logprobs:
            for name in OURS:
                changed |= meta.pop(name, _ABSENT) is not _ABSENT
        return "changed" if changed else "kept"

    async def sampled(self, engines: StreamClient, url: str) -> Sampled:  # noqa: ARG002  # the protocol's
        return self._collected.sampled()


def _joined(known: list[Any], more: list[Any], total: int | None) -> list[Any]:
    """Return what has arrived. An event with as many entries as the engine counts replaces the earlier ones; another
    one continues them. The event of an abort may repeat the last entry, so all are cut at the count.
    """
    joined = more if total is None or len(more) == total else known + more
    return joined if total is None else joined[:total]


def _versions(meta: Fields, count: int) -> tuple[VersionSpan, ...]:
    """Return the policy versions of `count` tokens: spans, or one version of all."""
    reported = spans(meta.get("weight_versions"))
    version = meta.get("weight_version")
    if reported or not isinstance(version, str | int) or not count:
        return reported
    return (VersionSpan(str(version), 0, count),)
