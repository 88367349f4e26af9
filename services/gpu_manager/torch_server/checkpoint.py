"""Weights on disk: the place of each tensor in the safetensors files of a folder. Only headers are read.

Format: 8 bytes with the length of the header (little-endian), the header as JSON, then the data. Offsets in the header
count from the beginning of the data. A large model has several files and an index.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from services.gpu_manager.torch_server.errors import InvalidModel

SIZES: Final = {"F32": 4, "F16": 2, "BF16": 2}
"""Bytes of an element, by the number formats that are computed with."""
SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
MOST_HEADER: Final = 100 << 20
"""Bytes of a header. The format's own limit is 100 MB."""

_Whole = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """One tensor in a file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """Offset of its first byte in the file."""
    size: int
    """Bytes."""


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[_Whole, ...]
    data_offsets: tuple[_Whole, _Whole]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def read_places(folder: Path) -> dict[str, TensorPlace]:
    """Return the place of each tensor by its name.

    Raises:
        InvalidModel: files are missing, truncated or malformed.
    """
    files = _files(folder)
    places: dict[str, TensorPlace] = {}
    for name in files:
        places |= _header(folder / name)
    return places


def _files(folder: Path) -> list[str]:
    if (folder / SINGLE).is_file():
        return [SINGLE]
    if not (folder / INDEX).is_file():
        raise InvalidModel(f"{folder} has neither {SINGLE} nor {INDEX}; name the folder that has the model's files")
    try:
        index = msgspec.json.decode((folder / INDEX).read_bytes(), type=_Index)
    except msgspec.DecodeError as error:
        raise InvalidModel(f"{folder / INDEX} is not an index of weights: {error}") from None
    names = sorted(set(index.weight_map.values()))
    if other := [name for name in names if Path(name).name != name]:
        raise InvalidModel(f"{folder / INDEX} names {other[0]!r}; its files should be in the same folder")
    return names


def _header(path: Path) -> dict[str, TensorPlace]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            text = file.read(length) if length <= MOST_HEADER else b""
            end = file.seek(0, 2)
    except OSError as error:
        raise InvalidModel(f"{path} cannot be read: {error.strerror}") from None
    if len(text) < length or end < 8:
        raise InvalidModel(f"{path} is truncated, or is no safetensors file; copy it again")
    try:
        entries = msgspec.json.decode(text, type=dict[str, Any])
        entries.pop("__metadata__", None)
        found = msgspec.convert(entries, dict[str, _Entry])
    except msgspec.DecodeError as error:
        raise InvalidModel(f"{path} has a header that is no safetensors header: {error}") from None
    return {name: _place(path, name, entry, 8 + length, end) for name, entry in found.items()}


def _place(path: Path, name: str, entry: _Entry, data: int, end: int) -> TensorPlace:
    begin, behind = (data + offset for offset in entry.data_offsets)
    if behind > end:
        raise InvalidModel(
            f"{path} is truncated: tensor {name} ends at byte {behind}, the file at {end}; copy it again"
        )
    size = behind - begin
    if size < 0 or (entry.dtype in SIZES and size != prod(entry.shape) * SIZES[entry.dtype]):
        raise InvalidModel(f"{path}: tensor {name} has {size} bytes, which is not {entry.dtype} {list(entry.shape)}")
    return TensorPlace(path, entry.dtype, entry.shape, begin, size)
