"""Small models with random weights, written as folders that the server reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ENCODER: dict[str, Any] = {
    "architectures": ["BertForSequenceClassification"],
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 40,
    "max_position_embeddings": 48,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "num_labels": 1,
}
DECODER: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 48,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
WORDS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", *(f"w{number}" for number in range(36)))
"""The vocabulary of each small model."""


def write_weights(path: Path, tensors: Mapping[str, NDArray[Any]], dtypes: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file. `dtypes`: of tensors that are no F32."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        dtype = (dtypes or {}).get(name, "F32")
        part = _encoded(values, dtype)
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def _encoded(values: NDArray[Any], dtype: str) -> bytes:
    if dtype == "BF16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return values.astype({"F32": "<f4", "F16": "<f2", "I64": "<i8"}[dtype]).tobytes()


def write_encoder(folder: Path, config: Mapping[str, Any] = ENCODER, *, prefix: str = "bert.") -> Path:
    """Write an encoder with its tokenizer, and return its folder."""
    random = np.random.default_rng(5)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], hidden),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "pooler.dense.weight": (hidden, hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{at}.attention.{part}.weight"] = (hidden, hidden)
        shapes[f"{at}.attention.output.LayerNorm.weight"] = shapes[f"{at}.output.LayerNorm.weight"] = (hidden,)
        shapes[f"{at}.intermediate.dense.weight"] = (inner, hidden)
        shapes[f"{at}.output.dense.weight"] = (hidden, inner)
    shapes = {prefix + name: shape for name, shape in shapes.items()}
    if "num_labels" in config:
        shapes["classifier.weight"] = (config["num_labels"], hidden)
    with_biases = dict(shapes)
    for name, shape in shapes.items():
        if "_embeddings" not in name:
            with_biases[name.removesuffix("weight") + "bias"] = shape[:1]
    write_weights(folder / "model.safetensors", _random(random, with_biases))
    (folder / "config.json").write_text(json.dumps(dict(config)))
    write_tokenizer(folder)
    return folder


def write_decoder(folder: Path, config: Mapping[str, Any] = DECODER, dtypes: Mapping[str, str] | None = None) -> Path:
    """Write a decoder without a tokenizer, and return its folder."""
    random = np.random.default_rng(6)
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    family = config["architectures"][0]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        for part, size in (("q", queries), ("k", keys), ("v", keys)):
            shapes[f"{at}.self_attn.{part}_proj.weight"] = (size, hidden)
            if family.startswith("Qwen2"):
                shapes[f"{at}.self_attn.{part}_proj.bias"] = (size,)
        if family.startswith("Qwen3"):
            shapes[f"{at}.self_attn.q_norm.weight"] = shapes[f"{at}.self_attn.k_norm.weight"] = (head,)
        shapes[f"{at}.self_attn.o_proj.weight"] = (hidden, queries)
        shapes[f"{at}.mlp.gate_proj.weight"] = shapes[f"{at}.mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{at}.mlp.down_proj.weight"] = (hidden, inner)
        shapes[f"{at}.input_layernorm.weight"] = shapes[f"{at}.post_attention_layernorm.weight"] = (hidden,)
    if family.endswith("ForSequenceClassification"):
        shapes["score.weight"] = (config["num_labels"], hidden)
    elif not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    write_weights(folder / "model.safetensors", _random(random, shapes), dtypes)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    return folder


def write_tokenizer(folder: Path, words: tuple[str, ...] = WORDS) -> None:
    """Write a tokenizer whose tokens are words, with the special tokens of BERT."""
    ids = {word: number for number, word in enumerate(words)}
    special = [
        {"id": ids[word], "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for word in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
    ]  # fmt: skip

    def part(kind: str, name: str, types: int) -> dict[str, Any]:
        return {kind: {"id": name, "type_id": types}}

    single = [part("SpecialToken", "[CLS]", 0), part("Sequence", "A", 0), part("SpecialToken", "[SEP]", 0)]
    document = {
        "version": "1.0",
        "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, part("Sequence", "B", 1), part("SpecialToken", "[SEP]", 1)],
            "special_tokens": {
                name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")
            },
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": "[UNK]"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(document))


def _random(random: np.random.Generator, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[Any]]:
    return {name: random.normal(0.1, 0.5, shape).astype("<f4") for name, shape in shapes.items()}
