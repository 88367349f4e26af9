"""Requests to answers: tokenise, wait for the results, form the answer.

Texts are tokenised and answers are formed in a thread of their own, so a large request does not stop the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from services.gpu_manager.torch_server.architecture import Architecture, Task
from services.gpu_manager.torch_server.bodies import (
    EmbedBody,
    Embeddings,
    Logprobs,
    LogprobsBody,
    ScoreBody,
    Scores,
    Similarities,
)
from services.gpu_manager.torch_server.engine import Engine, RunningRequest
from services.gpu_manager.torch_server.errors import RequestRejected
from services.gpu_manager.torch_server.scores import score_of, similarities
from services.gpu_manager.torch_server.sequences import TokenSequence
from services.gpu_manager.torch_server.texts import Text, Texts

_T = TypeVar("_T")


class ModelAnswering:
    """Answers of one model. The engine has accepted each request."""

    def __init__(self, engine: Engine, architecture: Architecture, texts: Texts | None, max_tokens: int) -> None:
        """Answer requests to `engine`.

        Args:
            texts: None for a model that reads tokens only.
        """
        self._engine = engine
        self._architecture = architecture
        self._texts = texts
        self._max_tokens = max_tokens
        self._thread = ThreadPoolExecutor(1, "texts")

    async def score(self, request: RunningRequest, body: ScoreBody) -> Scores:
        """Return the score of each input.

        Raises:
            RequestRejected: the model has no such head, or an input cannot be read.
        """
        self._check("score")
        label = self._label(body.label)
        texts = [each if isinstance(each, str) else (each[0], each[1]) for each in body.inputs]
        results = await self._engine.results(request, await self._tokenized(texts, truncate=body.truncate))
        regression = self._architecture.is_regression
        return Scores([score_of(result, label, is_regression=regression) for result in results])

    async def embed(self, request: RunningRequest, body: EmbedBody) -> Embeddings | Similarities:
        """Return embeddings, or the cosine similarity of each pair.

        Raises:
            RequestRejected: the model computes none, or an input cannot be read.
        """
        self._check("embed")
        if (body.inputs is None) == (body.pairs is None):
            raise RequestRejected(422, "invalid_body", "send one of inputs and pairs")
        texts = body.inputs or [text for pair in body.pairs or () for text in pair]
        results = await self._engine.results(request, await self._tokenized(texts, truncate=body.truncate))
        if body.inputs is not None:
            return Embeddings(results)
        return await self._in_thread(lambda: Similarities(similarities(results)))

    async def logprobs(self, request: RunningRequest, body: LogprobsBody) -> Logprobs:
        """Return the log-probability of each token from `start` on.

        Raises:
            RequestRejected: the model predicts no tokens, or an input cannot be read.
        """
        self._check("logprobs")
        if (body.tokens is None) == (body.texts is None):
            raise RequestRejected(422, "invalid_body", "send one of tokens and texts")
        count = len(body.tokens or body.texts or ())
        starts = [body.start] * count if isinstance(body.start, int) else body.start
        if len(starts) != count:
            raise RequestRejected(422, "invalid_body", f"start has {len(starts)} numbers; send one, or {count}")
        if body.tokens is not None:
            sequences = [TokenSequence(ids, (), start) for ids, start in zip(body.tokens, starts, strict=True)]
        else:
            sequences = await self._tokenized(body.texts or (), truncate=False, starts=starts)
        for at, sequence in enumerate(sequences):
            self._check_tokens(at, sequence)
        results = await self._engine.results(request, sequences)
        return Logprobs(results, None if body.texts is None else [list(each.tokens) for each in sequences])

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _check(self, task: Task) -> None:
        own = self._architecture.task
        if task != own:
            raise RequestRejected(404, "wrong_task", f"{self._architecture.name} computes no {task}; call /v1/{own}")

    def _label(self, label: int | None) -> int:
        labels = self._architecture.labels
        if label is None and labels > 1:
            raise RequestRejected(
                422, "invalid_body", f"the model has {labels} labels; send label, a number below {labels}"
            )
        if label is not None and label >= labels:
            raise RequestRejected(422, "invalid_body", f"label should be below {labels}")
        return label or 0

    def _check_tokens(self, at: int, sequence: TokenSequence) -> None:
        size, vocabulary = len(sequence), self._architecture.config.vocab_size
        if size > self._max_tokens:
            raise RequestRejected(
                422, "too_long", f"input {at} has {size} tokens, and the model reads {self._max_tokens}"
            )
        if sequence.start >= size:
            raise RequestRejected(422, "invalid_body", f"input {at} has {size} tokens; start should be below {size}")
        if max(sequence.tokens) >= vocabulary:
            raise RequestRejected(422, "invalid_body", f"input {at} has a token that is not below {vocabulary}")

    async def _tokenized(
        self, texts: Sequence[Text], *, truncate: bool, starts: Sequence[int] = ()
    ) -> list[TokenSequence]:
        reader = self._texts
        if reader is None:
            raise RequestRejected(422, "no_tokenizer", "the model's folder has no tokenizer.json; send tokens")
        return await self._in_thread(lambda: reader.tokenized(texts, truncate=truncate, starts=starts))

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
