"""Weights in host memory, and their copy on the device while the model is resident.

All tensors lie in one buffer, in the same layout on both sides. So a restore is one copy and one synchronisation, and
an eviction frees one allocation and writes nothing back (ARL-Tangram, section 5.3). On a CPU the "device" is a second
buffer in memory, so that eviction frees real memory there too.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from ctypes import c_char
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from services.gpu_manager.torch_server.checkpoint import SIZES, TensorPlace
from services.gpu_manager.torch_server.errors import InsufficientMemory, InvalidModel

DTYPES: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
ALIGNMENT: Final = 256
"""Bytes. Each tensor begins at a multiple of it; kernels read aligned memory faster."""
_REGISTER_PORTABLE: Final = 1
"""cudaHostRegisterPortable: pinned for every CUDA context."""


class Weights:
    """Tensors of one model, by name."""

    def __init__(self, places: Mapping[str, TensorPlace], device: torch.device) -> None:
        """Read the tensors into host memory. O(bytes); with CUDA the memory is pinned.

        All are kept in the number format that most bytes have.

        Raises:
            InvalidModel: a file cannot be read.
            InsufficientMemory: the host has too little memory, or it cannot be pinned.
        """
        self.dtype = _most_common(places)
        self.device = device
        self._layout, size = _laid_out(places, self.dtype)
        self._host = _host_memory(size)
        self._device: Tensor | None = None
        self._tensors: dict[str, Tensor] = {}
        for name, place in places.items():
            _read(place, self._view(self._host, name))
        if device.type == "cuda":
            _pin(self._host)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Tensors on the device; none while the model is evicted."""
        return self._tensors

    @property
    def is_resident(self) -> bool:
        return self._device is not None

    @property
    def host_bytes(self) -> int:
        return int(self._host.nbytes)

    @property
    def device_bytes(self) -> int:
        """Bytes of the device copy, as this object counts them."""
        return 0 if self._device is None else int(self._device.nbytes)

    @property
    def reserved_bytes(self) -> int | None:
        """Bytes that PyTorch holds on the device, measured; None on a CPU."""
        return int(torch.cuda.memory_reserved(self.device)) if self.device.type == "cuda" else None

    def evict(self) -> None:
        """Free the device copy, and all memory that PyTorch keeps on the device."""
        self._tensors = {}
        self._device = None
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()

    def restore(self) -> None:
        """Copy the weights to the device. O(bytes); returns when the copy is complete.

        Raises:
            InsufficientMemory: the device has too little free memory. The model stays evicted.
        """
        if self._device is not None:
            return
        try:
            copy = (
                torch.empty(self.host_bytes, dtype=torch.uint8, device=self.device)
                if self.device.type == "cuda"
                else _host_memory(self.host_bytes)
            )
            copy.copy_(self._host, non_blocking=True)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise InsufficientMemory(
                f"out of memory on {self.device}: {self.host_bytes >> 20} MiB of weights: {error}"
            ) from None
        self._tensors = {name: self._view(copy, name) for name in self._layout}
        self._device = copy

    def _view(self, buffer: Tensor, name: str) -> Tensor:
        begin, size, shape = self._layout[name]
        return buffer[begin : begin + size].view(DTYPES[self.dtype]).view(shape)


def _most_common(places: Mapping[str, TensorPlace]) -> str:
    sizes = dict.fromkeys(SIZES, 0)
    for place in places.values():
        sizes[place.dtype] += place.size
    return max(sizes, key=sizes.__getitem__)


def _laid_out(places: Mapping[str, TensorPlace], dtype: str) -> tuple[dict[str, tuple[int, int, tuple[int, ...]]], int]:
    """Return begin, size and shape of each tensor, and the bytes of all."""
    layout, begin = {}, 0
    for name, place in places.items():
        size = place.size // SIZES[place.dtype] * SIZES[dtype]
        layout[name] = (begin, size, place.shape)
        begin += -(-size // ALIGNMENT) * ALIGNMENT
    return layout, begin


def _host_memory(size: int) -> Tensor:
    """Return zeroed memory of exactly this size. It is given back to the system with its last view.

    An allocator may keep freed memory, and PyTorch's allocator of pinned memory rounds sizes up to a power of two.
    """
    try:
        return torch.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=torch.uint8)
    except OSError as error:
        raise InsufficientMemory(
            f"out of memory: the host has no {size >> 20} MiB for weights: {error.strerror}"
        ) from None


def _pin(memory: Tensor) -> None:
    cuda: Any = torch.cuda
    result = cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, _REGISTER_PORTABLE)
    if int(result):
        raise InsufficientMemory(
            f"out of memory: {memory.nbytes >> 20} MiB of host memory cannot be pinned (CUDA error {int(result)}); "
            "raise the limit of locked memory (ulimit -l), or use a machine with more memory"
        )


def _read(place: TensorPlace, to: Tensor) -> None:
    """Read one tensor from its file. Another number format is converted."""
    source = to if to.dtype == DTYPES[place.dtype] else torch.empty(place.shape, dtype=DTYPES[place.dtype])
    try:
        _fill(place.path, place.begin, source)
    except OSError as error:
        raise InvalidModel(f"{place.path} cannot be read: {error.strerror}") from None
    if source is not to:
        to.copy_(source)


def _fill(path: Path, begin: int, tensor: Tensor) -> None:
    """Read the bytes of a tensor. Raises InvalidModel if the file ends before."""
    buffer = memoryview((c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        while buffer:
            count = file.readinto(buffer)
            if not count:
                raise InvalidModel(f"{path} became shorter while it was read; copy it again")
            buffer = buffer[count:]
