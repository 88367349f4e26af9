"""Encoders against NumPy: the real MiniLM, and small reward models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.services.gpu_manager.torch_server import oracle
from tests.services.gpu_manager.torch_server.models import ENCODER, WORDS, write_encoder
from tests.services.gpu_manager.torch_server.server import RunningServer, running_server

TOLERANCE = 1e-4
SIMILAR = (
    ("A man is playing a guitar.", "Someone plays a guitar."),
    ("The answer is forty-two.", "42 is the answer."),
    ("The cat sleeps on the sofa.", "A cat is asleep on a couch."),
)
DIFFERENT = (
    ("A man is playing a guitar.", "The stock market fell by two percent."),
    ("The answer is forty-two.", "Penguins live in the south."),
    ("The cat sleeps on the sofa.", "Compile the program with optimisation."),
)
TEXTS = (
    "",
    "hello world",
    "ﬁne Übergröße 漢字 🎉",
    "one two three " * 30,
    *(text for pair in SIMILAR for text in pair),
)


def expected_embedding(folder: Path, text: str) -> oracle.Array:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    encoding = tokenizer.encode(text)
    config = json.loads((folder / "config.json").read_text())
    tensors = oracle.read_tensors(folder / "model.safetensors")
    return oracle.embedding(oracle.encoder_states(tensors, config, encoding.ids, encoding.type_ids))


def test_similar_texts_score_above_different_ones(embedder: RunningServer) -> None:
    found = embedder.result("/v1/embed", {"pairs": [*SIMILAR, *DIFFERENT]})["similarities"]
    assert min(found[: len(SIMILAR)]) > 0.5 > 0.3 > max(found[len(SIMILAR) :])


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "each alone"])
def test_embeddings_are_those_of_numpy(embedder: RunningServer, minilm: Path, together: bool) -> None:
    if together:
        found = embedder.result("/v1/embed", {"inputs": TEXTS})["embeddings"]
    else:
        found = [embedder.result("/v1/embed", {"inputs": [text]})["embeddings"][0] for text in TEXTS]
    expected = np.array([expected_embedding(minilm, text) for text in TEXTS])
    assert np.abs(np.array(found) - expected).max() < TOLERANCE


def test_similarities_are_the_products_of_the_embeddings(embedder: RunningServer) -> None:
    texts = [text for pair in SIMILAR for text in pair]
    rows = np.array(embedder.result("/v1/embed", {"inputs": texts})["embeddings"])
    found = embedder.result("/v1/embed", {"pairs": SIMILAR})["similarities"]
    assert np.allclose(found, (rows[::2] * rows[1::2]).sum(1), atol=1e-6)
    assert np.allclose((rows**2).sum(1), 1, atol=1e-6)


def test_the_tokenizers_own_limit_of_128_tokens_is_not_used(embedder: RunningServer) -> None:
    """MiniLM reads 256 tokens, and its tokenizer.json would cut at 128."""
    long, longer = "word " * 200, "word " * 200 + "penguin"
    both = np.array(embedder.result("/v1/embed", {"inputs": [long, longer]})["embeddings"])
    assert np.abs(both[0] - both[1]).max() > 1e-3


def test_a_long_text_is_refused_unless_it_may_be_cut(embedder: RunningServer) -> None:
    text = "word " * 300
    refused = embedder.post("/v1/embed", {"inputs": ["short", text]})
    assert refused.status_code == 422
    assert refused.json()["code"] == "too_long"
    assert "input 1 has 302 tokens, and the model reads 256" in refused.json()["message"]
    cut = embedder.result("/v1/embed", {"inputs": [text, "word " * 254], "truncate": True})["embeddings"]
    assert np.allclose(cut[0], cut[1], atol=1e-6)


def expected_outputs(folder: Path, config: dict[str, Any], first: str, second: str | None = None) -> oracle.Array:
    """Return the outputs of a small model. Its words are its tokens."""
    left = [1, *(WORDS.index(word) for word in first.split()), 2]
    right = [] if second is None else [*(WORDS.index(word) for word in second.split()), 2]
    tensors = oracle.read_tensors(folder / "model.safetensors")
    tensors = {name.removeprefix("bert."): values for name, values in tensors.items()}
    types = [0] * len(left) + [1] * len(right)
    return oracle.encoder_outputs(tensors, oracle.encoder_states(tensors, config, left + right, types))


def test_scores_of_texts_and_pairs_are_those_of_numpy(scorer: RunningServer) -> None:
    inputs = ["w1 w2 w3", ["w4 w5", "w6"], "w7", ["w6", "w4 w5"]]
    found = scorer.result("/v1/score", {"inputs": inputs})["scores"]
    expected = [
        expected_outputs(scorer.folder, ENCODER, *(each if isinstance(each, list) else [each]))[0] for each in inputs
    ]
    assert np.abs(np.array(found) - expected).max() < TOLERANCE
    assert abs(found[1] - found[3]) > 1e-3


def test_several_labels_give_the_probability_of_the_one_that_is_named(torch_installed: None, tmp_path: Path) -> None:
    config = {**ENCODER, "num_labels": 3}
    with running_server(write_encoder(tmp_path, config), "--device", "cpu") as server:
        missing = server.post("/v1/score", {"inputs": ["w1"]})
        assert (missing.status_code, missing.json()["code"]) == (422, "invalid_body")
        assert "3 labels" in missing.json()["message"]
        assert server.post("/v1/score", {"inputs": ["w1"], "label": 3}).status_code == 422
        found = [server.result("/v1/score", {"inputs": ["w1 w2"], "label": label})["scores"][0] for label in range(3)]
    expected = oracle.softmax(expected_outputs(tmp_path, config, "w1 w2"))
    assert np.abs(np.array(found) - expected).max() < TOLERANCE
