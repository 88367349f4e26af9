"""Texts to tokens, by the `tokenizer.json` of a model folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tokenizers import Encoding, Tokenizer

from services.gpu_manager.torch_server.errors import InvalidModel, RequestRejected
from services.gpu_manager.torch_server.sequences import TokenSequence

MOST_CHARS_A_TOKEN: Final = 64
"""A text with more characters than this for each token that fits is refused before it is tokenised, which takes a
second for a few million characters and cannot be interrupted."""

Text = str | tuple[str, str]


class Texts:
    """A tokenizer with the limits of its model. One thread at a time may use it."""

    def __init__(self, folder: Path, *, vocabulary: int, max_tokens: int, allows_pairs: bool) -> None:
        """Read `tokenizer.json`.

        Raises:
            InvalidModel: it is missing, malformed, or of another model.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise InvalidModel(f"{folder} has no tokenizer.json; add it, because this model reads texts")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises plain exceptions
            raise InvalidModel(f"{path} is no tokenizer: {error}") from None
        if (highest := max(self._tokenizer.get_vocab().values(), default=0)) >= vocabulary:
            raise InvalidModel(
                f"{path} has the token {highest}, and the model {vocabulary} tokens; they belong to different models"
            )
        # The file's own padding and truncation, which can cut texts at 128 tokens, are not used.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._max_tokens = max_tokens
        self._allows_pairs = allows_pairs

    def tokenized(self, texts: Sequence[Text], *, truncate: bool, starts: Sequence[int] = ()) -> list[TokenSequence]:
        """Return the tokens of each text, with the special tokens of its model.

        Args:
            truncate: cut a text that is too long, instead of refusing it.
            starts: of each text, the first token whose log-probability is asked for.
        Raises:
            RequestRejected: a text is too long or not valid, or it is a pair and the model takes none.
        """
        for at, text in enumerate(texts):
            self._check(at, text)
        if truncate:
            self._tokenizer.enable_truncation(self._max_tokens)
        try:
            encodings = self._tokenizer.encode_batch(list(texts))
        except (TypeError, ValueError, UnicodeError):
            raise RequestRejected(
                422, "invalid_text", "a text is not valid Unicode; replace its lone surrogates"
            ) from None
        finally:
            self._tokenizer.no_truncation()
        each_start = starts or (1,) * len(texts)
        return [self._sequence(at, encoding, each_start[at]) for at, encoding in enumerate(encodings)]

    def _check(self, at: int, text: Text) -> None:
        if isinstance(text, tuple) and not self._allows_pairs:
            raise RequestRejected(
                422, "no_pairs", f"input {at} is a pair; this model reads one text: apply its chat template to both"
            )
        chars = len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
        if chars > self._max_tokens * MOST_CHARS_A_TOKEN:
            raise RequestRejected(
                422,
                "too_long",
                f"input {at} has {chars} characters, and the model reads {self._max_tokens} tokens; shorten it",
            )

    def _sequence(self, at: int, encoding: Encoding, start: int) -> TokenSequence:
        if len(encoding.ids) > self._max_tokens:
            raise RequestRejected(
                422,
                "too_long",
                f"input {at} has {len(encoding.ids)} tokens, and the model reads {self._max_tokens}; "
                "shorten it; score and embed can also truncate it",
            )
        if not encoding.ids:
            raise RequestRejected(422, "empty", f"input {at} has no token; send a text")
        return TokenSequence(encoding.ids, encoding.type_ids if any(encoding.type_ids) else (), start)
