"""Forward pass of a BERT-like encoder (Devlin et al., 2019), after layer normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from services.gpu_manager.torch_server.encoder_config import EncoderConfig


def encode(weights: Mapping[str, Tensor], config: EncoderConfig, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    """Return the hidden states, `[batch, length, hidden]`.

    Args:
        ids, types: `[batch, length]`, whole numbers.
        mask: `[batch, length]`, true where a token is no padding.
    """
    hidden = (
        functional.embedding(ids, weights["embeddings.word_embeddings.weight"])
        + functional.embedding(types, weights["embeddings.token_type_embeddings.weight"])
        + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
    )
    hidden = _norm(weights, config, "embeddings.LayerNorm", hidden)
    seen = mask[:, None, None, :]
    for layer in range(config.num_hidden_layers):
        at = f"encoder.layer.{layer}"
        attended = _linear(weights, f"{at}.attention.output.dense", _attention(weights, config, at, hidden, seen))
        hidden = _norm(weights, config, f"{at}.attention.output.LayerNorm", hidden + attended)
        inner = _activated(config.hidden_act, _linear(weights, f"{at}.intermediate.dense", hidden))
        hidden = _norm(
            weights, config, f"{at}.output.LayerNorm", hidden + _linear(weights, f"{at}.output.dense", inner)
        )
    return hidden


def pooled_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over each input's tokens, of length 1: `[batch, hidden]` in float32."""
    kept = mask[:, :, None].float()
    return functional.normalize((hidden.float() * kept).sum(1) / kept.sum(1), dim=1)


def classified(weights: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    """Return the outputs of the classification head, `[batch, labels]` in float32. It reads the first token."""
    pooled = torch.tanh(_linear(weights, "pooler.dense", hidden[:, 0]))
    return _linear(weights, "classifier", pooled).float()


def _attention(weights: Mapping[str, Tensor], config: EncoderConfig, at: str, hidden: Tensor, seen: Tensor) -> Tensor:
    batch, length, size = hidden.shape
    heads = config.num_attention_heads

    def split(part: str) -> Tensor:
        projected = _linear(weights, f"{at}.attention.self.{part}", hidden)
        return projected.view(batch, length, heads, size // heads).transpose(1, 2)

    mixed = functional.scaled_dot_product_attention(split("query"), split("key"), split("value"), attn_mask=seen)
    return mixed.transpose(1, 2).reshape(batch, length, size)


def _linear(weights: Mapping[str, Tensor], name: str, values: Tensor) -> Tensor:
    return functional.linear(values, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _norm(weights: Mapping[str, Tensor], config: EncoderConfig, name: str, values: Tensor) -> Tensor:
    size = (config.hidden_size,)
    return functional.layer_norm(
        values, size, weights[f"{name}.weight"], weights[f"{name}.bias"], config.layer_norm_eps
    )


def _activated(name: str, values: Tensor) -> Tensor:
    if name == "relu":
        return functional.relu(values)
    return partial(functional.gelu, approximate="none" if name == "gelu" else "tanh")(values)
