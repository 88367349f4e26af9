"""Warnings of `treadle up` about the file of model services."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.shared.model_services.test_entries import entry
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


def test_a_file_that_cannot_be_read_is_left_to_the_gpu_manager(tmp_path: Path) -> None:
    wrong = tmp_path / "services.json"
    wrong.write_text("[]")
    for path in (wrong, tmp_path / "none.json", tmp_path, Path("/dev/null")):
        assert not file_warnings({**DEVICES, "GPU_MANAGER_SERVICES": str(path)})
    assert not file_warnings(DEVICES)
