"""Forward passes in NumPy, in float64 and one input at a time: independent of the server's code and of PyTorch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Config = Mapping[str, Any]


def read_tensors(path: Path) -> dict[str, Array]:
    """Return the tensors of a safetensors file; whole numbers are left out."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__" and entry["dtype"] in ("F32", "F16", "BF16"):
            begin, end = entry["data_offsets"]
            tensors[name] = _numbers(data[8 + size + begin : 8 + size + end], entry["dtype"]).reshape(entry["shape"])
    return tensors


def _numbers(data: bytes, dtype: str) -> Array:
    if dtype == "BF16":  # the upper half of a float32
        wide = np.frombuffer(data, "<u2").astype("<u4") << 16
        return wide.view("<f4").astype(np.float64)
    return np.frombuffer(data, "<f4" if dtype == "F32" else "<f2").astype(np.float64)


def encoder_states(tensors: Mapping[str, Array], config: Config, ids: Sequence[int], types: Sequence[int]) -> Array:
    """Return the hidden states `[length, hidden]` of one input. Names of tensors have no prefix."""
    eps, heads = config["layer_norm_eps"], config["num_attention_heads"]

    def norm(values: Array, name: str) -> Array:
        centred = values - values.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
        result: Array = scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]
        return result

    def linear(values: Array, name: str) -> Array:
        return values @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    states = tensors["embeddings.word_embeddings.weight"][list(ids)]
    states = states + tensors["embeddings.token_type_embeddings.weight"][list(types)]
    states = norm(states + tensors["embeddings.position_embeddings.weight"][: len(ids)], "embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        query, key, value = (linear(states, f"{at}.attention.self.{part}") for part in ("query", "key", "value"))
        size = query.shape[1] // heads
        mixed = np.empty_like(query)
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            mixed[:, part] = softmax(query[:, part] @ key[:, part].T / math.sqrt(size)) @ value[:, part]
        states = norm(states + linear(mixed, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm")
        inner = linear(states, f"{at}.intermediate.dense")
        inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        states = norm(states + linear(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    return states


def embedding(states: Array) -> Array:
    mean: Array = states.mean(0)
    result: Array = mean / np.sqrt((mean**2).sum())
    return result


def encoder_outputs(tensors: Mapping[str, Array], states: Array) -> Array:
    """Return the outputs of the classification head."""
    pooled = np.tanh(tensors["pooler.dense.weight"] @ states[0] + tensors["pooler.dense.bias"])
    outputs: Array = tensors["classifier.weight"] @ pooled + tensors["classifier.bias"]
    return outputs


def decoder_states(tensors: Mapping[str, Array], config: Config, ids: Sequence[int], frequencies: Array) -> Array:
    """Return the hidden states `[length, hidden]` of one input.

    Args:
        frequencies: rotary frequency of each pair of a head's numbers, `[head / 2]`.
    """
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    size = config["head_dim"]

    def norm(values: Array, name: str) -> Array:
        root = np.sqrt((values**2).mean(-1, keepdims=True) + config["rms_norm_eps"])
        result: Array = values / root * tensors[f"{name}.weight"]
        return result

    def linear(values: Array, name: str) -> Array:
        bias = tensors.get(f"{name}.bias")
        return values @ tensors[f"{name}.weight"].T + (0 if bias is None else bias)

    def rotated(values: Array, position: int) -> Array:
        """Turn each pair (i, i + size / 2) of one head by its angle, as complex numbers."""
        half = size // 2
        turned = (values[:half] + 1j * values[half:]) * np.exp(1j * position * frequencies)
        return np.concatenate([turned.real, turned.imag])

    states = tensors["model.embed_tokens.weight"][list(ids)]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        normed = norm(states, f"{at}.input_layernorm")
        parts = {part: linear(normed, f"{at}.self_attn.{part}_proj").reshape(len(ids), -1, size) for part in "qkv"}
        for part in "qk":
            if f"{at}.self_attn.{part}_norm.weight" in tensors:
                parts[part] = norm(parts[part], f"{at}.self_attn.{part}_norm")
        mixed = np.empty((len(ids), heads, size))
        for head in range(heads):
            group = head // (heads // groups)
            query = np.array([rotated(parts["q"][at_, head], at_) for at_ in range(len(ids))])
            key = np.array([rotated(parts["k"][at_, group], at_) for at_ in range(len(ids))])
            for position in range(len(ids)):
                weights = softmax(key[: position + 1] @ query[position] / math.sqrt(size))
                mixed[position, head] = weights @ parts["v"][: position + 1, group]
        states = states + linear(mixed.reshape(len(ids), -1), f"{at}.self_attn.o_proj")
        normed = norm(states, f"{at}.post_attention_layernorm")
        gate = linear(normed, f"{at}.mlp.gate_proj")
        inner = gate / (1 + np.exp(-gate)) * linear(normed, f"{at}.mlp.up_proj")
        states = states + linear(inner, f"{at}.mlp.down_proj")
    return norm(states, "model.norm")


def decoder_logprobs(tensors: Mapping[str, Array], states: Array, ids: Sequence[int], start: int) -> Array:
    """Return the log-probabilities of the tokens from `start` on."""
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    logits = states @ head.T
    return np.array([np.log(softmax(logits[at - 1]))[ids[at]] for at in range(start, len(ids))])


def plain_frequencies(config: Config) -> Array:
    return np.array(
        [config["rope_theta"] ** (-2 * pair / config["head_dim"]) for pair in range(config["head_dim"] // 2)]
    )


def stretched_frequencies(config: Config) -> Array:
    """Return the frequencies of Llama 3.1, from the wavelengths in its paper's terms."""
    scaling = config["rope_scaling"]
    before, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    found = []
    for frequency in plain_frequencies(config):
        wavelength = 2 * math.pi / frequency
        if wavelength < before / scaling["high_freq_factor"]:
            found.append(frequency)
        elif wavelength > before / scaling["low_freq_factor"]:
            found.append(frequency / factor)
        else:
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            share = (before / wavelength - low) / (high - low)
            found.append((1 - share) * frequency / factor + share * frequency)
    return np.array(found)


def softmax(values: Array) -> Array:
    powers = np.exp(values - values.max(-1, keepdims=True))
    result: Array = powers / powers.sum(-1, keepdims=True)
    return result
