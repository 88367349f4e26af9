"""What an engine reports of a call's tokens, behind one protocol for all engines and routes.

A reader is made for one call to one engine. It adds fields to the request, takes the answer's JSON objects (the whole
answer, or the events of a stream), collects ids, and removes from the answer exactly what it has requested itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol

from shared.runtime.http_streams import StreamClient
from shared.runtime.streamed_answer import Header
from shared.tokens.calls import LogprobMeaning, VersionSpan

Fields = dict[str, Any]
"""A JSON object."""
Change = Literal["kept", "changed", "dropped"]
"""What has become of an object of the answer: it passes as it arrived, changed, or not at all."""
ABORTED: Final = "abort"
"""Finish reason of a call that its engine has ended early, of vLLM and SGLang."""


@dataclass(slots=True)
class SampledChoice:
    """Tokens of one choice."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = ""
    versions: tuple[VersionSpan, ...] = ()


class Sampled(NamedTuple):
    """Tokens of a call."""

    prompt: Sequence[int] | None
    """None: not reported."""
    choices: Mapping[int, SampledChoice]
    completion_tokens: int | None
    """As the engine counts them, over all choices. None: not reported."""
    error: str
    """Why the answer is not what it should be; empty: it is."""


class TokenReader(Protocol):
    """Reads the tokens of one call from the answer of one engine."""

    logprobs_of: LogprobMeaning

    def request(self) -> tuple[Fields, Sequence[Header]]:
        """Return the body with the fields that the record needs, and headers to add."""
        ...

    def take(self, event: Fields) -> Change:
        """Take an object of the answer, and remove from it what the client has not requested."""
        ...

    async def sampled(self, engines: StreamClient, url: str) -> Sampled:
        """Return the tokens, after the last event. `url`: of the engine, which may be asked for the prompt."""
        ...


@dataclass(slots=True)
class Collected:
    """Tokens as they arrive."""

    prompt: list[int] | None = None
    choices: dict[int, SampledChoice] = field(default_factory=dict)
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    error: str = ""

    def choice(self, event: Fields) -> SampledChoice:
        """Return the choice of an entry of `choices`."""
        index = event.get("index")
        return self.choices.setdefault(index if isinstance(index, int) else 0, SampledChoice())

    def usage(self, event: Fields) -> None:
        """Take the engine's own counts."""
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.completion_tokens = integer(usage.get("completion_tokens"), self.completion_tokens)
            self.prompt_tokens = integer(usage.get("prompt_tokens"), self.prompt_tokens)

    def finish(self, choice: SampledChoice, reason: object) -> None:
        """Take the reason of an end."""
        if isinstance(reason, str) and reason:
            choice.finish_reason = reason

    def sampled(self) -> Sampled:
        """Return what has arrived."""
        prompt, error = self.prompt, self.error
        if prompt is not None and self.prompt_tokens is not None and self.prompt_tokens != len(prompt):
            error = error or f"the engine counts {self.prompt_tokens} tokens of the prompt, and reports {len(prompt)}"
            prompt = None
        return Sampled(prompt, self.choices, self.completion_tokens, error)


def objects(value: object) -> list[Fields]:
    """Return the JSON objects of a list; empty if it is none."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def integers(value: object) -> list[int] | None:
    """Return a list of ids; None if it is none."""
    return value if isinstance(value, list) and all(type(one) is int for one in value) else None


def integer(value: object, default: int | None = None) -> int | None:
    """Return a whole number, or the default."""
    return value if type(value) is int else default


def logprob_entries(choice: Fields) -> list[Fields]:
    """Return `logprobs.content` of a choice."""
    logprobs = choice.get("logprobs")
    return objects(logprobs.get("content")) if isinstance(logprobs, dict) else []


def logprobs_of(entries: Sequence[Fields]) -> list[float]:
    """Return the log-probabilities of entries, up to the first one that has none."""
    values: list[float] = []
    for entry in entries:
        value = entry.get("logprob")
        if not isinstance(value, int | float) or value != value:  # NaN
            break
        values.append(float(value))
    return values


def spans(value: object) -> tuple[VersionSpan, ...]:
    """Return version spans: `[{"version", "start", "end"}]`."""
    return tuple(
        VersionSpan(str(one.get("version")), one["start"], one["end"])
        for one in objects(value)
        if type(one.get("start")) is int and type(one.get("end")) is int
    )


class Requested:
    """Options of a streamed call that the record needs: the engine's own counts of tokens."""

    def __init__(self, fields: Fields) -> None:
        options = fields.get("stream_options")
        given = options if isinstance(options, dict) else {}
        self.streams = fields.get("stream") is True
        self.usage = self.streams and given.get("include_usage") is not True
        """The client has not requested the last event, of usage."""
        self._options = {**given, "include_usage": True}

    def fields(self) -> Fields:
        """Return the fields to add."""
        return {"stream_options": self._options} if self.usage else {}

    def drops(self, event: Fields) -> bool:
        """Return whether an event is the one that the client has not requested."""
        return self.usage and event.get("choices") == [] and isinstance(event.get("usage"), dict)
