"""Configuration of decoders like Llama, Qwen2 and Qwen3: RMSNorm, rotary positions, grouped queries, SwiGLU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from services.gpu_manager.torch_server.encoder_config import Size
from services.gpu_manager.torch_server.errors import InvalidModel

_FAMILIES: Final = ("Llama", "Qwen2", "Qwen3")
DECODERS: Final = tuple(
    f"{family}{end}" for family in _FAMILIES for end in ("ForCausalLM", "ForSequenceClassification")
)

_Positive = Annotated[float, msgspec.Meta(gt=0)]


class RopeScaling(msgspec.Struct, frozen=True):
    """Scaling of rotary frequencies for longer contexts, as Llama 3.1 has it."""

    factor: _Positive
    low_freq_factor: _Positive
    high_freq_factor: _Positive
    original_max_position_embeddings: Size


class DecoderConfig(msgspec.Struct, frozen=True):
    """Sizes and constants, by their names in `config.json`."""

    hidden_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    intermediate_size: Size
    vocab_size: Size
    max_position_embeddings: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    rms_norm_eps: _Positive = 1e-6
    rope_theta: _Positive = 10_000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    hidden_act: Literal["silu"] = "silu"
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    use_sliding_window: bool = False
    scaling: RopeScaling | None = None
    """Set when it is read, from `rope_scaling` or `rope_parameters`."""
    family: str = ""

    @property
    def head(self) -> int:
        """Numbers of one attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def max_tokens(self) -> int:
        return self.max_position_embeddings


def read_decoder(path: Path, name: str, text: bytes) -> DecoderConfig:
    """Return the configuration of a decoder.

    Args:
        path: of its `config.json`, for messages.
        name: of the architecture.
        text: of the file.
    Raises:
        InvalidModel: it declares what is not supported.
    """
    try:
        config = msgspec.json.decode(text, type=DecoderConfig)
        rope = config.rope_parameters or config.rope_scaling or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        scaling = msgspec.convert(rope, RopeScaling) if kind == "llama3" else None
        theta = msgspec.convert(rope.get("rope_theta", config.rope_theta), _Positive)
    except msgspec.DecodeError as error:
        raise InvalidModel(f"{path} is not supported: {error}") from None
    if config.attention_bias or config.mlp_bias or config.use_sliding_window:
        raise InvalidModel(f"{path}: attention_bias, mlp_bias and use_sliding_window should be false")
    if kind not in ("default", "llama3"):
        raise InvalidModel(f"{path}: rope type {kind!r} is not supported; it should be default or llama3")
    if config.head % 2 or config.num_attention_heads % config.groups:
        raise InvalidModel(
            f"{path}: head_dim should be even, and num_attention_heads a multiple of num_key_value_heads"
        )
    family = next(family for family in _FAMILIES if name.startswith(family))
    return msgspec.structs.replace(config, rope_theta=theta, scaling=scaling, family=family)


def decoder_tensors(config: DecoderConfig, labels: int, *, has_head: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a decoder's tensors.

    Args:
        labels: outputs of the classification head `score`; 0 without one.
        has_head: it predicts tokens. A head that shares the embedding's weights has no tensor of its own.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head, config.groups * config.head
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (config.vocab_size, hidden), "norm.weight": (hidden,)}
    for layer in range(config.num_hidden_layers):
        at = f"layers.{layer}"
        for part, size in (("q", queries), ("k", keys), ("v", keys)):
            shapes[f"{at}.self_attn.{part}_proj.weight"] = (size, hidden)
            if config.family == "Qwen2":
                shapes[f"{at}.self_attn.{part}_proj.bias"] = (size,)
        shapes[f"{at}.self_attn.o_proj.weight"] = (hidden, queries)
        if config.family == "Qwen3":
            shapes |= {f"{at}.self_attn.{part}_norm.weight": (config.head,) for part in ("q", "k")}
        shapes[f"{at}.mlp.gate_proj.weight"] = shapes[f"{at}.mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{at}.mlp.down_proj.weight"] = (hidden, inner)
        shapes |= {f"{at}.input_layernorm.weight": (hidden,), f"{at}.post_attention_layernorm.weight": (hidden,)}
    if labels:
        shapes["score.weight"] = (labels, hidden)
    if has_head and not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes
