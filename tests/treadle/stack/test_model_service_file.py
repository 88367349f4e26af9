"""Warnings of `treadle up` about the file of model services."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.shared.model_services.test_entries import entry
from treadle.stack import model_service_file
from treadle.stack.model_service_file import file_warnings

DEVICES = {"GPU_MANAGER_DEVICES": '[{"memory_gb": 24}]'}


def test_each_wrong_entry_has_a_line(tmp_path: Path) -> None:
    path = tmp_path / "services.json"
    right = entry(command=[sys.executable, "{port}"])
    missing = entry(command=["no-such-program-7", "{port}"])
    path.write_text(json.dumps({"right": right, "typo": {**right, "backend": "tgi"}, "missing": missing}))
    environ = {**DEVICES, "GPU_MANAGER_SERVICES": str(path)}
    first, second = file_warnings(environ)
    assert first.startswith(f"GPU_MANAGER_SERVICES: {path}: entry 'missing': command: there is no program 'no-such-")
    assert f"{path}: entry 'typo': backend: must be one of process, sglang, torch, vllm, not 'tgi'" in second
    assert not file_warnings(environ | {"STACK_SERVICES": "cpu_manager"}), "no GPU manager reads it"


def test_an_entry_that_does_not_fit_the_described_gpus_has_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "services.json"
    right = entry(command=[sys.executable, "{port}"])
    given = {"backend": "vllm", "command": None, "url": "http://127.0.0.1:8001", "first_gpu": 2, "degrees": [2]}
    entries = {"right": right, "large": {**right, "memory_gb": {"awake": 25}}, "wide": {**right, "degrees": [4]}}
    path.write_text(json.dumps({**entries, "elsewhere": entry(**given)}))
    devices = {"GPU_MANAGER_DEVICES": '[{"memory_gb": 24}, {"memory_gb": 16}]'}
    file = {"GPU_MANAGER_SERVICES": str(path)}
    monkeypatch.setattr(model_service_file, "has_real_gpus", lambda: False)
    elsewhere, large, wide = file_warnings(devices | file)
    assert "entry 'elsewhere': first_gpu: its engine would be on GPU 3, and this node has 2 GPUs" in elsewhere
    assert "entry 'large': it needs 25 GB of each GPU, and the largest of this node has 24 GB" in large
    assert "entry 'wide': it needs 4 GPUs, and this node has 2" in wide
    for wrong in ("[{}]", "24", '[{"memory_gb": "much"}]', "["):
        assert not file_warnings(file | {"GPU_MANAGER_DEVICES": wrong}), "the GPU manager does not start"
    monkeypatch.setattr(model_service_file, "has_real_gpus", lambda: True)
    assert not file_warnings(devices | file), "the described ones are not used"


def test_a_file_that_cannot_be_read_is_left_to_the_gpu_manager(tmp_path: Path) -> None:
    wrong = tmp_path / "services.json"
    wrong.write_text("[]")
    for path in (wrong, tmp_path / "none.json", tmp_path, Path("/dev/null")):
        assert not file_warnings({**DEVICES, "GPU_MANAGER_SERVICES": str(path)})
    assert not file_warnings(DEVICES)
