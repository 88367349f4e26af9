"""The log of a test front: what it sent to the engine and received from it. The oracle of token records."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

FinishReason = Literal["", "stop", "length", "tool_calls", "abort", "disconnect", "error"]


class VersionSpan(msgspec.Struct):
    """Output tokens `start` to `end` (exclusive) that were sampled under one version of the weights."""

    version: str
    start: int
    end: int


class LoggedCall(msgspec.Struct):
    """One call of the engine. Its lists grow while it runs."""

    id: str
    """Id of the answer."""
    route: str
    request: dict[str, Any]
    """Body as the front received it."""
    headers: dict[str, str]
    """Headers as the front received them. Names are in lower case."""
    prompt_ids: list[int] = []
    output_ids: list[int] = []
    logprobs: list[float] = []
    """Log-probability of each output token, from the raw model."""
    versions: list[VersionSpan] = []
    text: str = ""
    """Output text, without a stop string."""
    finish_reason: FinishReason = ""
    """`abort`: by a route, and the client got an answer. `disconnect`: its connection ended. Empty: the call runs."""
    cached_tokens: int = 0
    """Prompt tokens that the engine did not compute, because a slot had them."""

    @property
    def aborted(self) -> bool:
        """Whether the engine's call was aborted."""
        return self.finish_reason in ("abort", "disconnect")

    def add(self, ids: list[int], logprobs: list[float], version: str) -> None:
        """Append output tokens that were sampled under a version."""
        start = len(self.output_ids)
        self.output_ids += ids
        self.logprobs += logprobs
        if self.versions and self.versions[-1].version == version:
            self.versions[-1].end += len(ids)
        elif ids:
            self.versions.append(VersionSpan(version, start, start + len(ids)))
