"""Places of tensors: files of one or several parts, and files that are damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.gpu_manager.torch_server.checkpoint import read_places
from services.gpu_manager.torch_server.errors import InvalidModel
from tests.services.gpu_manager.torch_server.models import write_weights


def values(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype="<f4").reshape(shape)


def test_places_lead_to_the_bytes(tmp_path: Path) -> None:
    tensors = {"a": values(2, 3), "b": values(4) + 0.5, "ids": values(2)}
    write_weights(tmp_path / "model.safetensors", tensors, {"b": "F16", "ids": "I64"})
    places = read_places(tmp_path)
    assert {name: (place.dtype, place.shape) for name, place in places.items()} == {
        "a": ("F32", (2, 3)), "b": ("F16", (4,)), "ids": ("I64", (2,)),
    }  # fmt: skip
    data = (tmp_path / "model.safetensors").read_bytes()
    for name, dtype in (("a", "<f4"), ("b", "<f2")):
        place = places[name]
        found = np.frombuffer(data[place.begin : place.begin + place.size], dtype).reshape(place.shape)
        assert (found == tensors[name]).all()


def test_several_files_have_an_index(tmp_path: Path) -> None:
    write_weights(tmp_path / "one.safetensors", {"a": values(2)})
    write_weights(tmp_path / "two.safetensors", {"b": values(3)})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    assert {name: place.path.name for name, place in read_places(tmp_path).items()} == {
        "a": "one.safetensors", "b": "two.safetensors",
    }  # fmt: skip
    index.write_text(json.dumps({"weight_map": {"a": "../one.safetensors"}}))
    with pytest.raises(InvalidModel, match="in the same folder"):
        read_places(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "three.safetensors"}}))
    with pytest.raises(InvalidModel, match="cannot be read"):
        read_places(tmp_path)


@pytest.mark.parametrize("kept", [0, 7, 8, 40, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "model.safetensors"
    write_weights(path, {"a": values(8, 8)})
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InvalidModel, match=r"truncated.* copy it again"):
        read_places(tmp_path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "4 bytes, which is not F32"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}, "-8 bytes"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "no safetensors header"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}, "no safetensors header"),
        ({"dtype": "F32", "shape": [2]}, "no safetensors header"),
        ([], "no safetensors header"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, entry: Any, message: str) -> None:
    text = json.dumps({"a": entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(InvalidModel, match=message):
        read_places(tmp_path)


@pytest.mark.parametrize("content", [b"\xff" * 8 + b"{}", b"GGUF" + bytes(100), (2).to_bytes(8, "little") + b"[]"])
def test_a_file_of_another_format_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(InvalidModel, match="safetensors"):
        read_places(tmp_path)
