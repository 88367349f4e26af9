"""Configuration of BERT-like encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from services.gpu_manager.torch_server.errors import InvalidModel

ENCODERS: Final = ("BertModel", "BertForSequenceClassification")

Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]


class EncoderConfig(msgspec.Struct, frozen=True):
    """Sizes and constants, by their names in `config.json`."""

    hidden_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    intermediate_size: Size
    vocab_size: Size
    max_position_embeddings: Size
    type_vocab_size: Size = 2
    layer_norm_eps: Annotated[float, msgspec.Meta(gt=0)] = 1e-12
    hidden_act: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"] = "gelu"
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: bool = False
    max_tokens: int = 0
    """Most tokens of an input; set when it is read."""


class _SentenceConfig(msgspec.Struct):
    max_seq_length: Annotated[int, msgspec.Meta(ge=1)] | None = None


class _Module(msgspec.Struct):
    type: str
    path: str = ""


def read_encoder(folder: Path, text: bytes) -> EncoderConfig:
    """Return the configuration of an encoder.

    Args:
        text: of its `config.json`.
    Raises:
        InvalidModel: it, or the files of sentence-transformers beside it, declare what is not supported.
    """
    path = folder / "config.json"
    try:
        config = msgspec.json.decode(text, type=EncoderConfig)
        beside = folder / "sentence_bert_config.json"
        most = (
            msgspec.json.decode(beside.read_bytes(), type=_SentenceConfig).max_seq_length if beside.is_file() else None
        )
    except msgspec.DecodeError as error:
        raise InvalidModel(f"{path}, or sentence_bert_config.json beside it, is not supported: {error}") from None
    if config.is_decoder:
        raise InvalidModel(f"{path}: is_decoder should be false")
    if config.hidden_size % config.num_attention_heads:
        raise InvalidModel(f"{path}: hidden_size should be a multiple of num_attention_heads")
    _check_modules(folder)
    limit = config.max_position_embeddings
    return msgspec.structs.replace(config, max_tokens=min(limit, most or limit))


def _check_modules(folder: Path) -> None:
    """Check that a sentence model pools by the mean, the only way that is computed here."""
    modules = folder / "modules.json"
    if not modules.is_file():
        return
    try:
        declared = msgspec.json.decode(modules.read_bytes(), type=list[_Module])
        for module in declared:
            kind = module.type.rpartition(".")[2]
            if kind not in ("Transformer", "Pooling", "Normalize"):
                raise InvalidModel(f"{modules}: module {kind} is not supported; use Transformer, Pooling and Normalize")
            if kind == "Pooling":
                pooling = msgspec.json.decode((folder / module.path / "config.json").read_bytes(), type=dict[str, Any])
                modes = [name for name, value in pooling.items() if name.startswith("pooling_mode") and value is True]
                if modes != ["pooling_mode_mean_tokens"] and pooling.get("pooling_mode") != "mean":
                    raise InvalidModel(f"{modules}: pooling is not supported; it should be pooling_mode_mean_tokens")
    except msgspec.DecodeError as error:
        raise InvalidModel(f"{modules} is malformed: {error}") from None
    except OSError as error:
        raise InvalidModel(f"{modules} names a file that cannot be read: {error.filename}") from None


def encoder_tensors(config: EncoderConfig, labels: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an encoder's tensors; with `labels`, also those of its pooler and classifier."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocab_size, hidden),
        "embeddings.position_embeddings.weight": (config.max_position_embeddings, hidden),
        "embeddings.token_type_embeddings.weight": (config.type_vocab_size, hidden),
        **_norm("embeddings.LayerNorm", hidden),
    }
    for layer in range(config.num_hidden_layers):
        at = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            shapes |= _linear(f"{at}.attention.self.{part}", hidden, hidden)
        shapes |= _linear(f"{at}.attention.output.dense", hidden, hidden)
        shapes |= _norm(f"{at}.attention.output.LayerNorm", hidden)
        shapes |= _linear(f"{at}.intermediate.dense", inner, hidden)
        shapes |= _linear(f"{at}.output.dense", hidden, inner)
        shapes |= _norm(f"{at}.output.LayerNorm", hidden)
    if labels:
        shapes |= _linear("pooler.dense", hidden, hidden) | _linear("classifier", labels, hidden)
    return shapes


def _linear(name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}
