"""A loaded model: batches of tokens become numbers.

Results are deterministic: the same batch gives the same bits, also after an eviction and a restore. Another composition
of the batch can change the last bits, because kernels sum in another order.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.gpu_manager.torch_server import decoder, encoder
from services.gpu_manager.torch_server.architecture import needed_places, read_architecture
from services.gpu_manager.torch_server.checkpoint import read_places
from services.gpu_manager.torch_server.encoder_config import EncoderConfig
from services.gpu_manager.torch_server.errors import InsufficientMemory, InvalidModel
from services.gpu_manager.torch_server.sequences import Result, TokenSequence
from services.gpu_manager.torch_server.weights import Weights


class LoadedModel:
    """One model on one device. One thread at a time may use it."""

    def __init__(self, folder: Path, device: str, max_tokens: int) -> None:
        """Read a model folder and make the model resident.

        Args:
            device: `cpu`, `cuda:N`, or `auto`: the first GPU if there is any, else the CPU.
            max_tokens: most tokens of an input; the model's own limit also applies.
        Raises:
            InvalidModel: the folder, or the device, cannot be used.
            InsufficientMemory: the host or the device has too little memory.
        """
        places = read_places(folder)
        self.architecture = read_architecture(folder, frozenset(places))
        self.max_tokens = min(max_tokens, self.architecture.config.max_tokens)
        self.weights = Weights(needed_places(self.architecture, places), _device(device))
        self.weights.restore()

    def forward(self, batch: Sequence[TokenSequence]) -> list[Result]:
        """Return the result of each sequence: an embedding, a number for each label, or one for each token.

        The model should be resident. O(sequences x longest).

        Raises:
            InsufficientMemory: the device has too little free memory for this batch.
        """
        assert self.weights.is_resident, "the model is evicted"
        try:
            with torch.inference_mode():
                return self._forward(batch)
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
                raise
            torch.cuda.empty_cache()
            raise InsufficientMemory(
                f"out of memory on {self.weights.device}: a batch of {len(batch)} inputs: {error}"
            ) from None

    def _forward(self, batch: Sequence[TokenSequence]) -> list[Result]:
        config, tensors = self.architecture.config, self.weights.tensors
        ids, mask = self._padded([sequence.tokens for sequence in batch])
        if isinstance(config, EncoderConfig):
            types, _ = self._padded([sequence.types or (0,) * len(sequence) for sequence in batch])
            states = encoder.encode(tensors, config, ids, types, mask)
            if self.architecture.task == "embed":
                return _rows(encoder.pooled_mean(states, mask))
            return _rows(encoder.classified(tensors, states))
        states = decoder.decode(tensors, config, ids)
        if self.architecture.task == "score":
            last = mask.sum(1) - 1
            return _rows(decoder.classified(tensors, states[torch.arange(len(batch), device=ids.device), last]))
        before = torch.cat([states[at, each.start - 1 : len(each) - 1] for at, each in enumerate(batch)])
        wanted = torch.cat([ids[at, each.start : len(each)] for at, each in enumerate(batch)])
        found = iter(_numbers(decoder.predicted(tensors, before, wanted)))
        return [list(islice(found, len(each) - each.start)) for each in batch]

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return rows as one tensor `[batch, longest]`, and a mask that is true where a row has a value."""
        longest = max(len(row) for row in rows)
        values = torch.tensor([[*row, *(0,) * (longest - len(row))] for row in rows], device=self.weights.device)
        lengths = torch.tensor([len(row) for row in rows], device=self.weights.device)
        return values, torch.arange(longest, device=self.weights.device) < lengths[:, None]


def prepare_torch(threads: int) -> None:
    """Set up PyTorch for this process, before its first computation.

    Args:
        threads: of computations on the CPU; 0: PyTorch's own choice.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS sums in a fixed order only with this
    torch.use_deterministic_algorithms(True)
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False  # it would write each restored buffer twice
    if threads:
        torch.set_num_threads(threads)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InvalidModel(f"device {name!r} is unknown; write auto, cpu or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise InvalidModel(f"device {name!r} is not supported; write auto, cpu or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidModel(
            f"device {name!r} is not there: PyTorch {torch.__version__} finds {torch.cuda.device_count()} NVIDIA GPUs"
        )
    return device


def _rows(values: Tensor) -> list[Result]:
    rows: list[Result] = values.cpu().tolist()
    return rows


def _numbers(values: Tensor) -> list[float]:
    numbers: list[float] = values.cpu().tolist()
    return numbers
