"""Architectures: `config.json` decides what a model computes and which tensors it needs. Anything else is refused.

Names of tensors are those of the files, without the prefix of the encoder or decoder (`bert.`, `model.`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from services.gpu_manager.torch_server.checkpoint import SIZES, TensorPlace
from services.gpu_manager.torch_server.decoder_config import DECODERS, DecoderConfig, decoder_tensors, read_decoder
from services.gpu_manager.torch_server.encoder_config import ENCODERS, EncoderConfig, encoder_tensors, read_encoder
from services.gpu_manager.torch_server.errors import InvalidModel

Task = Literal["embed", "score", "logprobs"]
TASKS: Final[Mapping[str, Task]] = {"ForSequenceClassification": "score", "ForCausalLM": "logprobs", "Model": "embed"}
"""Task of an architecture, by the end of its name."""


class _Labels(msgspec.Struct):
    architectures: list[str] = []
    num_labels: int | None = None
    id2label: dict[str, Any] | None = None
    problem_type: str | None = None
    quantization_config: Any = None


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a model computes."""

    name: str
    task: Task
    config: EncoderConfig | DecoderConfig
    labels: int
    """Outputs of the classification head; 0 without one."""
    is_regression: bool
    """Its outputs are scores of their own, not parts of one distribution."""
    shapes: Mapping[str, tuple[int, ...]]
    """Tensors that are needed, by name without prefix."""
    prefix: str


def read_architecture(folder: Path, names: frozenset[str]) -> Architecture:
    """Return the architecture of a model folder.

    Args:
        names: tensors in its files.
    Raises:
        InvalidModel: `config.json` is missing or malformed, or declares what is not supported.
    """
    path = folder / "config.json"
    try:
        text = path.read_bytes()
        head = msgspec.json.decode(text, type=_Labels)
    except FileNotFoundError:
        raise InvalidModel(f"{folder} has no config.json; name the folder that has the model's files") from None
    except OSError as error:
        raise InvalidModel(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InvalidModel(f"{path} is no configuration of a model: {error}") from None
    name = head.architectures[0] if len(head.architectures) == 1 else ""
    if name not in ENCODERS and name not in DECODERS:
        shown = ", ".join(head.architectures) or "none"
        raise InvalidModel(
            f"{path}: architectures is {shown}; supported is one of {', '.join(sorted((*ENCODERS, *DECODERS)))}"
        )
    if head.quantization_config is not None:
        raise InvalidModel(f"{path}: quantised weights are not supported; use weights in F32, F16 or BF16")
    task = next(task for end, task in TASKS.items() if name.endswith(end))
    labels = _count(head) if task == "score" else 0
    if labels < 0:
        raise InvalidModel(f"{path}: num_labels should be at least 1")
    regression = labels == 1 or head.problem_type in ("regression", "multi_label_classification")
    if name in ENCODERS:
        encoder = read_encoder(folder, text)
        prefix = "bert." if any(each.startswith("bert.") for each in names) else ""
        return Architecture(name, task, encoder, labels, regression, encoder_tensors(encoder, labels), prefix)
    decoder = read_decoder(path, name, text)
    shapes = decoder_tensors(decoder, labels, has_head=task == "logprobs")
    return Architecture(name, task, decoder, labels, regression, shapes, "model.")


def _count(head: _Labels) -> int:
    """Return the number of labels. The format's own default is 2."""
    if head.num_labels is not None:
        return head.num_labels or -1
    return 2 if head.id2label is None else len(head.id2label) or -1


def needed_places(architecture: Architecture, places: Mapping[str, TensorPlace]) -> dict[str, TensorPlace]:
    """Return the place of each needed tensor, by its name without prefix.

    Raises:
        InvalidModel: a tensor is missing, or has another shape or number format.
    """
    needed = {}
    for name, shape in architecture.shapes.items():
        place = places.get(architecture.prefix + name) or places.get(name)
        if place is None:
            raise InvalidModel(
                f"the weights have no tensor {architecture.prefix}{name}, which {architecture.name} needs"
            )
        if place.shape != shape:
            raise InvalidModel(
                f"tensor {architecture.prefix}{name} is {list(place.shape)}; with this config.json it should be "
                f"{list(shape)}"
            )
        if place.dtype not in SIZES:
            raise InvalidModel(f"tensor {name} is {place.dtype}; supported are {', '.join(SIZES)}")
        needed[name] = place
    return needed
