"""The operator's file of model services: which files are used, and what an error says."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from services.gpu_manager.service_entries import WrongEntries, load_entries
from tests.shared.model_services.test_entries import JUDGE, entry


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "services.json"
    path.write_bytes(msgspec.json.encode({"judge-a": JUDGE, "b": entry(priority=3)}))

    found = load_entries(path)
    assert ({name: each.priority for name, each in found.entries.items()}, found.problems) == (
        {"judge-a": 0, "b": 3}, {},
    )  # fmt: skip
    assert load_entries(None) == ({}, {})


def test_the_null_device_declares_no_service(tmp_path: Path) -> None:
    """docker-compose.yml mounts it under another name where the operator has no file."""
    link = tmp_path / "services.json"
    link.symlink_to("/dev/null")
    assert load_entries(link) == load_entries(Path("/dev/null")) == ({}, {})


def test_a_file_that_everybody_may_change_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "services.json"
    path.write_bytes(b"{}")
    path.chmod(0o646)
    with pytest.raises(WrongEntries, match="has commands, and every account may change it: run `chmod o-w "):
        load_entries(path)


def test_errors_of_a_file_name_it(tmp_path: Path) -> None:
    path = tmp_path / "services.json"
    with pytest.raises(WrongEntries, match=r"GPU_MANAGER_SERVICES: .*services\.json cannot be read \(No such file"):
        load_entries(path)
    with pytest.raises(WrongEntries, match=r"cannot be read .*; name a JSON file of services that this account can"):
        load_entries(tmp_path)
    with pytest.raises(WrongEntries, match="/dev/zero is no file; name a JSON file of services"):
        load_entries(Path("/dev/zero"))
    path.write_bytes(b'[{"judge-a": {}}]')
    with pytest.raises(WrongEntries, match=r"services\.json: it is no JSON object of entries"):
        load_entries(path)
    path.write_bytes(b" " * ((4 << 20) + 1))
    with pytest.raises(WrongEntries, match="is larger than 4194304 bytes"):
        load_entries(path)


def test_a_wrong_entry_has_a_problem_and_stops_no_other(tmp_path: Path) -> None:
    path = tmp_path / "services.json"
    path.write_bytes(msgspec.json.encode({"judge-a": entry(concurrency=0), "judge-b": JUDGE}))
    found = load_entries(path)
    assert list(found.entries) == ["judge-b"]
    assert found.problems == {"judge-a": "concurrency: must be at least 1"}
