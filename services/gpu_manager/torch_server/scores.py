"""Outputs of models to scores. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from services.gpu_manager.torch_server.sequences import Result


def score_of(outputs: Result, label: int, *, is_regression: bool) -> float:
    """Return the score of an input: the output of its label, or for classes the probability of its label (softmax)."""
    if is_regression:
        return outputs[label]
    highest = max(outputs)
    return math.exp(outputs[label] - highest) / math.fsum(math.exp(output - highest) for output in outputs)


def similarities(embeddings: Sequence[Result]) -> list[float]:
    """Return the cosine of each two embeddings of length 1, within -1 and 1."""
    return [
        max(-1.0, min(1.0, math.fsum(map(float.__mul__, left, right))))
        for left, right in zip(embeddings[::2], embeddings[1::2], strict=True)
    ]
