"""Decoders with random weights against NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.gpu_manager.torch_server.sequences import TokenSequence
from tests.services.gpu_manager.torch_server import oracle
from tests.services.gpu_manager.torch_server.models import DECODER, write_decoder, write_tokenizer
from tests.services.gpu_manager.torch_server.server import RunningServer, running_server

TOLERANCE = 1e-4
INPUTS = ([5, 6, 7, 8, 9, 10, 11], [12, 13], [39, 0, 39, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13])
SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 32}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama with tied embeddings": {"tie_word_embeddings": True},
    "llama 3.1": {"rope_scaling": SCALING},
    "theta in rope_parameters": {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 1},
}


def expected_states(folder: Path, config: Mapping[str, Any], ids: list[int]) -> oracle.Array:
    tensors = oracle.read_tensors(folder / "model.safetensors")
    config = {**config, **(config.get("rope_parameters") or {})}
    frequencies = oracle.stretched_frequencies(config) if "rope_scaling" in config else oracle.plain_frequencies(config)
    return oracle.decoder_states(tensors, config, ids, frequencies)


def expected_logprobs(folder: Path, config: Mapping[str, Any], ids: list[int], start: int = 1) -> oracle.Array:
    tensors = oracle.read_tensors(folder / "model.safetensors")
    return oracle.decoder_logprobs(tensors, expected_states(folder, config, ids), ids, start)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_logprobs_are_those_of_numpy(torch_installed: None, tmp_path: Path, changes: dict[str, Any]) -> None:
    from services.gpu_manager.torch_server.model import LoadedModel

    config = {**DECODER, **changes}
    model = LoadedModel(write_decoder(tmp_path, config), "cpu", 64)
    found = model.forward([TokenSequence(ids) for ids in INPUTS])
    for ids, logprobs in zip(INPUTS, found, strict=True):
        assert np.abs(np.array(logprobs) - expected_logprobs(tmp_path, config, ids)).max() < TOLERANCE


def test_a_large_vocabulary_is_computed_in_parts(
    torch_installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.gpu_manager.torch_server import decoder
    from services.gpu_manager.torch_server.model import LoadedModel

    model = LoadedModel(write_decoder(tmp_path), "cpu", 64)
    whole = model.forward([TokenSequence(ids) for ids in INPUTS])
    monkeypatch.setattr(decoder, "MOST_LOGITS", 3 * DECODER["vocab_size"])
    parts = model.forward([TokenSequence(ids) for ids in INPUTS])
    assert all(np.allclose(one, other, atol=1e-6) for one, other in zip(whole, parts, strict=True))


def test_the_server_answers_for_the_tokens_from_start_on(teacher: RunningServer) -> None:
    starts = [3, 1, 16]
    found = teacher.result("/v1/logprobs", {"tokens": INPUTS, "start": starts})
    assert found["tokens"] is None
    assert [len(each) for each in found["logprobs"]] == [4, 1, 1]
    for ids, start, logprobs in zip(INPUTS, starts, found["logprobs"], strict=True):
        assert np.abs(np.array(logprobs) - expected_logprobs(teacher.folder, DECODER, ids, start)).max() < TOLERANCE


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"tokens": [[1, 40]]}, "not below 40"),
        ({"tokens": [[1, -1]]}, ">= 0"),
        ({"tokens": [[1]]}, "length >= 2"),
        ({"tokens": [[1, 2]], "start": 2}, "start should be below 2"),
        ({"tokens": [[1, 2]], "start": 0}, ">= 1"),
        ({"tokens": [[1, 2]], "start": [1, 1]}, "send one, or 1"),
        ({"tokens": [[1] * 65]}, "65 tokens, and the model reads 64"),
        ({"texts": ["w1 w2"]}, "no tokenizer.json"),
        ({}, "one of tokens and texts"),
        ({"tokens": [[1, 2]], "texts": ["w1"]}, "one of tokens and texts"),
        ({"tokens": [[1, 2]], "temperature": 1}, "unknown field"),
    ],
)
def test_invalid_tokens_are_refused(teacher: RunningServer, body: dict[str, Any], message: str) -> None:
    refused = teacher.post("/v1/logprobs", body)
    assert (refused.status_code, message in refused.json()["message"]) == (422, True), refused.text


def test_texts_are_tokenised(torch_installed: None, tmp_path: Path) -> None:
    write_tokenizer(write_decoder(tmp_path))
    with running_server(tmp_path, "--device", "cpu") as server:
        found = server.result("/v1/logprobs", {"texts": ["w1 w2 w3"], "start": 2})
        pair = server.post("/v1/logprobs", {"texts": [["w1", "w2"]]})
    assert found["tokens"] == [[1, 5, 6, 7, 2]]
    assert (
        np.abs(np.array(found["logprobs"][0]) - expected_logprobs(tmp_path, DECODER, [1, 5, 6, 7, 2], 2)).max() < 1e-4
    )
    assert pair.status_code == 422


def test_a_reward_model_reads_the_last_token(torch_installed: None, tmp_path: Path) -> None:
    config = {**DECODER, "architectures": ["Qwen2ForSequenceClassification"], "num_labels": 1}
    write_tokenizer(write_decoder(tmp_path, config))
    with running_server(tmp_path, "--device", "cpu") as server:
        found = server.result("/v1/score", {"inputs": ["w1 w2 w3 w4 w5", "w1"]})["scores"]
        pair = server.post("/v1/score", {"inputs": [["w1", "w2"]]})
    head = oracle.read_tensors(tmp_path / "model.safetensors")["score.weight"][0]
    expected = [head @ expected_states(tmp_path, config, ids)[-1] for ids in ([1, 5, 6, 7, 8, 9, 2], [1, 5, 2])]
    assert np.abs(np.array(found) - expected).max() < TOLERANCE
    assert (pair.status_code, pair.json()["code"]) == (422, "no_pairs")


def test_bfloat16_weights_are_computed_with(torch_installed: None, tmp_path: Path) -> None:
    """Norms that are F32 in the file are converted, because most bytes are BF16."""
    from services.gpu_manager.torch_server.model import LoadedModel

    write_decoder(tmp_path)
    names = oracle.read_tensors(tmp_path / "model.safetensors")
    dtypes = {name: "BF16" for name in names if "norm" not in name}
    model = LoadedModel(write_decoder(tmp_path, DECODER, dtypes), "cpu", 64)
    assert model.weights.dtype == "BF16"
    found = model.forward([TokenSequence(INPUTS[0])])[0]
    expected = expected_logprobs(tmp_path, DECODER, INPUTS[0])
    assert np.abs(np.array(found) - expected).max() < 0.05 * np.abs(expected).max()  # 8 bits of precision
