"""Bodies of requests and answers."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

MOST_INPUTS: Final = 1024
"""Inputs of one request."""

_Inputs = msgspec.Meta(min_length=1, max_length=MOST_INPUTS)
_Id = Annotated[int, msgspec.Meta(ge=0)]
Input = str | Annotated[list[str], msgspec.Meta(min_length=2, max_length=2)]
"""A text, or a pair of texts."""


class ScoreBody(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/score`."""

    inputs: Annotated[list[Input], _Inputs]
    label: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Output of the head. Needed if it has several."""
    truncate: bool = False


class EmbedBody(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/embed`: `inputs` for embeddings, or `pairs` for the similarity of each two texts."""

    inputs: Annotated[list[str], _Inputs] | None = None
    pairs: Annotated[list[tuple[str, str]], _Inputs] | None = None
    truncate: bool = False


class LogprobsBody(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/logprobs`: `tokens`, or `texts`."""

    tokens: Annotated[list[Annotated[list[_Id], msgspec.Meta(min_length=2)]], _Inputs] | None = None
    texts: Annotated[list[str], _Inputs] | None = None
    start: Annotated[int, msgspec.Meta(ge=1)] | Annotated[list[Annotated[int, msgspec.Meta(ge=1)]], _Inputs] = 1
    """First token that gets a log-probability: one number for all inputs, or one for each. The first token of an input
    has none, because nothing predicts it."""


class Scores(msgspec.Struct):
    scores: list[float]


class Embeddings(msgspec.Struct):
    embeddings: list[list[float]]


class Similarities(msgspec.Struct):
    similarities: list[float]


class Logprobs(msgspec.Struct):
    logprobs: list[list[float]]
    """Of the tokens from `start` on, by input."""
    tokens: list[list[int]] | None = None
    """All tokens of each input, if texts were sent."""


class ServerState(msgspec.Struct):
    """`GET /state`."""

    residency: str
    """`resident` or `asleep1`; `evicting` or `restoring` while a copy is under way."""
    device_bytes: int
    """Bytes of weights on the device."""
    host_bytes: int
    """Bytes of weights in host memory."""
    running: int
    """Requests without an answer."""
    reserved_bytes: int | None
    """Bytes of the device that PyTorch holds, without CUDA's own; None on a CPU."""
    rss_bytes: int
    """Resident memory of this process."""
    architecture: str
    task: str
    dtype: str
    device: str
    max_tokens: int
    labels: int
    pid: int
    failure: str
    took_s: dict[str, float]


class Refusal(msgspec.Struct):
    """Body of each answer that is no result."""

    code: str
    message: str
