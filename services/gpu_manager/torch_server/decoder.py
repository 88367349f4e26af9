"""Forward pass of a decoder like Llama, Qwen2 and Qwen3.

Inputs are padded at their ends. Attention is causal, so no token sees padding and no mask is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from services.gpu_manager.torch_server.decoder_config import DecoderConfig

MOST_LOGITS: Final = 1 << 26
"""Logits in memory at a time: 256 MiB in float32. A vocabulary has up to 256,000 entries for each position."""


def decode(weights: Mapping[str, Tensor], config: DecoderConfig, ids: Tensor) -> Tensor:
    """Return the hidden states after the last norm, `[batch, length, hidden]`.

    Args:
        ids: `[batch, length]`, whole numbers.
    """
    hidden = functional.embedding(ids, weights["embed_tokens.weight"])
    angles = torch.arange(ids.shape[1], device=ids.device).float()[:, None] * _frequencies(config).to(ids.device)
    turn = torch.cat((angles, angles), dim=1)
    rotation = turn.cos().to(hidden.dtype), turn.sin().to(hidden.dtype)
    for layer in range(config.num_hidden_layers):
        at = f"layers.{layer}"
        normed = _norm(weights, config, f"{at}.input_layernorm", hidden)
        hidden = hidden + _attention(weights, config, f"{at}.self_attn", normed, rotation)
        normed = _norm(weights, config, f"{at}.post_attention_layernorm", hidden)
        gate = functional.silu(_linear(weights, f"{at}.mlp.gate_proj", normed))
        hidden = hidden + _linear(weights, f"{at}.mlp.down_proj", gate * _linear(weights, f"{at}.mlp.up_proj", normed))
    return _norm(weights, config, "norm", hidden)


def predicted(weights: Mapping[str, Tensor], states: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probability of each token, `[positions]` in float32.

    Args:
        states: `[positions, hidden]`, each before its token.
        tokens: `[positions]`.
    """
    head = weights.get("lm_head.weight")
    if head is None:
        head = weights["embed_tokens.weight"]
    rows = max(1, MOST_LOGITS // head.shape[0])
    found = []
    for begin in range(0, states.shape[0], rows):
        logits = functional.linear(states[begin : begin + rows], head).float()
        chosen = logits.gather(1, tokens[begin : begin + rows, None])[:, 0]
        found.append(chosen - logits.logsumexp(dim=1))
    return torch.cat(found)


def classified(weights: Mapping[str, Tensor], states: Tensor) -> Tensor:
    """Return the outputs of the classification head, `[batch, labels]` in float32.

    Args:
        states: `[batch, hidden]`, of the last token of each input.
    """
    return functional.linear(states, weights["score.weight"]).float()


def _attention(
    weights: Mapping[str, Tensor], config: DecoderConfig, at: str, hidden: Tensor, rotation: tuple[Tensor, Tensor]
) -> Tensor:
    batch, length, _ = hidden.shape

    def split(part: str, heads: int) -> Tensor:
        each = _linear(weights, f"{at}.{part}_proj", hidden).view(batch, length, heads, config.head)
        if config.family == "Qwen3" and part != "v":
            each = _norm(weights, config, f"{at}.{part}_norm", each)
        return each.transpose(1, 2)

    queries = _rotated(split("q", config.num_attention_heads), rotation)
    keys, values = _rotated(split("k", config.groups), rotation), split("v", config.groups)
    times = config.num_attention_heads // config.groups
    mixed = functional.scaled_dot_product_attention(
        queries, keys.repeat_interleave(times, dim=1), values.repeat_interleave(times, dim=1), is_causal=True
    )
    return _linear(weights, f"{at}.o_proj", mixed.transpose(1, 2).reshape(batch, length, -1))


def _rotated(values: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Return values `[batch, heads, length, head]` turned by their positions (RoPE, Su et al., 2021)."""
    cosine, sine = rotation
    first, second = values.chunk(2, dim=-1)
    return values * cosine + torch.cat((-second, first), dim=-1) * sine


def _frequencies(config: DecoderConfig) -> Tensor:
    """Return the rotary frequency of each pair of a head's numbers, `[head / 2]`."""
    pairs = torch.arange(0, config.head, 2).float()
    plain = 1.0 / config.rope_theta ** (pairs / config.head)
    scaling = config.scaling
    if scaling is None:
        return plain
    # Llama 3.1: slow frequencies are divided by the factor, fast ones stay, and those between are blended.
    periods = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((periods - low) / (high - low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / scaling.factor)


def _linear(weights: Mapping[str, Tensor], name: str, values: Tensor) -> Tensor:
    return functional.linear(values, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def _norm(weights: Mapping[str, Tensor], config: DecoderConfig, name: str, values: Tensor) -> Tensor:
    """Return values with mean square 1, scaled (RMSNorm, Zhang and Sennrich, 2019)."""
    wide = values.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + config.rms_norm_eps)
    return scaled.to(values.dtype) * weights[f"{name}.weight"]
