"""Configurations: what is supported, and the sentence for what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.gpu_manager.torch_server.architecture import needed_places, read_architecture
from services.gpu_manager.torch_server.checkpoint import read_places
from services.gpu_manager.torch_server.errors import InvalidModel
from services.gpu_manager.torch_server.scores import score_of
from tests.services.gpu_manager.torch_server.models import DECODER, ENCODER, write_decoder, write_encoder, write_weights


def read(folder: Path, config: dict[str, Any]) -> Any:
    (folder / "config.json").write_text(json.dumps(config))
    return read_architecture(folder, frozenset())


@pytest.mark.parametrize(
    ("changes", "task", "labels", "regression"),
    [
        ({}, "score", 1, True),
        ({"num_labels": 3}, "score", 3, False),
        ({"num_labels": 3, "problem_type": "regression"}, "score", 3, True),
        ({"num_labels": None, "id2label": {"0": "bad", "1": "good"}}, "score", 2, False),
        ({"num_labels": None}, "score", 2, False),
        ({"architectures": ["BertModel"]}, "embed", 0, False),
    ],
)
def test_the_name_decides_the_task(
    tmp_path: Path, changes: dict[str, Any], task: str, labels: int, regression: bool
) -> None:
    found = read(tmp_path, {**ENCODER, **changes})
    assert (found.task, found.labels) == (task, labels)
    assert not labels or found.is_regression == regression


@pytest.mark.parametrize("prefix", ["bert.", ""])
def test_names_of_tensors_may_have_the_prefix_of_the_encoder(tmp_path: Path, prefix: str) -> None:
    places = read_places(write_encoder(tmp_path, prefix=prefix))
    architecture = read_architecture(tmp_path, frozenset(places))
    assert needed_places(architecture, places).keys() == architecture.shapes.keys()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**ENCODER, "architectures": []}, "architectures is none; supported is one of BertFor"),
        ({**ENCODER, "architectures": ["MistralForCausalLM"]}, "MistralForCausalLM; supported is one of"),
        ({**ENCODER, "position_embedding_type": "relative_key"}, "is not supported"),
        ({**ENCODER, "is_decoder": True}, "is_decoder should be false"),
        ({**ENCODER, "num_attention_heads": 5}, "multiple of num_attention_heads"),
        ({**ENCODER, "hidden_size": "32"}, r"hidden_size"),
        ({**ENCODER, "num_labels": 0}, "num_labels should be at least 1"),
        ({**DECODER, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn' is not supported"),
        ({**DECODER, "rope_scaling": {"type": "llama3", "factor": 4.0}}, "low_freq_factor"),
        ({**DECODER, "attention_bias": True}, "attention_bias"),
        ({**DECODER, "use_sliding_window": True}, "use_sliding_window"),
        ({**DECODER, "num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        ({**DECODER, "head_dim": 7}, "head_dim should be even"),
        ({**DECODER, "quantization_config": {"quant_method": "awq"}}, "quantised weights are not supported"),
    ],
)
def test_what_is_not_supported_is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        read(tmp_path, config)


def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidModel, match="is no configuration of a model"):
        read_architecture(tmp_path, frozenset())


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        (["Transformer", "Pooling", "Normalize"], {"pooling_mode_mean_tokens": True}, ""),
        (["Transformer", "Pooling"], {"pooling_mode_cls_token": True}, "pooling is not supported"),
        (["Transformer", "Pooling", "Dense"], {"pooling_mode_mean_tokens": True}, "module Dense is not supported"),
    ],
)
def test_sentence_models_pool_by_the_mean(tmp_path: Path, modules: list[str], pooling: Any, message: str) -> None:
    (tmp_path / "modules.json").write_text(
        json.dumps([{"type": f"sentence_transformers.models.{name}", "path": name} for name in modules])
    )
    (tmp_path / "Pooling").mkdir()
    (tmp_path / "Pooling" / "config.json").write_text(json.dumps(pooling))
    config = {**ENCODER, "architectures": ["BertModel"]}
    if not message:
        assert read(tmp_path, config).task == "embed"
        return
    with pytest.raises(InvalidModel, match=message):
        read(tmp_path, config)


def test_tensors_of_another_shape_or_format_are_refused(tmp_path: Path) -> None:
    places = read_places(write_decoder(tmp_path))
    architecture = read_architecture(tmp_path, frozenset(places))
    needed = needed_places(architecture, places)
    assert needed.keys() == architecture.shapes.keys()
    with pytest.raises(InvalidModel, match=r"no tensor model\.norm\.weight, which LlamaForCausalLM needs"):
        needed_places(architecture, {name: place for name, place in places.items() if name != "model.norm.weight"})
    with pytest.raises(InvalidModel, match=r"norm\.weight is \[40, 32\]; with this config\.json it should be \[32\]"):
        needed_places(architecture, {**places, "model.norm.weight": places["lm_head.weight"]})
    write_weights(tmp_path / "model.safetensors", {"model.norm.weight": _zeros()}, {"model.norm.weight": "I64"})
    with pytest.raises(InvalidModel, match="is I64; supported are F32, F16, BF16"):
        needed_places(architecture, {**places, "model.norm.weight": read_places(tmp_path)["model.norm.weight"]})


def _zeros() -> Any:
    import numpy as np

    return np.zeros(32)


def test_scores_of_classes_are_probabilities_and_do_not_overflow() -> None:
    assert score_of([1000.0, 999.0], 0, is_regression=False) == pytest.approx(0.7310586)
    assert score_of([-1000.0, 0.0], 0, is_regression=False) == 0
    assert score_of([1000.0, 999.0], 1, is_regression=True) == 999.0
