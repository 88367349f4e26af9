"""Entries that a node uses: the manager has the last word about declarations over REST."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.gpu_manager.declared_entries import NodeLimits, used_entries
from shared.bus.model_services import Declared
from shared.model_services.entries import FileEntries, MemoryNeed, ServiceEntry, read_entries
from shared.model_services.references import Declaration, ServiceReference
from tests.shared.model_services.test_entries import entry

COMMAND = [sys.executable, "server.py", "--port", "{port}"]
STRICT = NodeLimits(allow_commands=False, device_gb=(24.0, 24.0))
OPEN = STRICT._replace(allow_commands=True)


def read(**changes: Any) -> ServiceEntry:
    return read_entries(msgspec.json.encode({"x": entry(command=COMMAND, **changes)}))["x"]


ENTRIES = {"judge-a": read(), "wide": read(degrees=[1, 2])}
FILE = FileEntries(ENTRIES, {})
NO_FILE = FileEntries({}, {})


def reference(name: str, **changes: Any) -> Declared:
    return Declared(1, Declaration(reference=ServiceReference(entry=name, **changes)))


def whole(**changes: Any) -> Declared:
    return Declared(1, Declaration(whole=read(**changes)))


def test_references_change_entries_and_make_services() -> None:
    declared = {"judge-a": reference("judge-a", priority=7), "second": reference("wide", concurrency=3)}
    entries, problems = used_entries(FILE, declared, STRICT)
    assert problems == {}
    assert (entries["judge-a"].priority, entries["second"].concurrency, entries["second"].degrees) == (7, 3, [1, 2])
    assert entries["wide"] == ENTRIES["wide"]
    assert used_entries(FILE, {}, STRICT).entries == ENTRIES


def test_a_node_without_permission_uses_no_whole_entry_whatever_was_stored() -> None:
    entries, problems = used_entries(FILE, {"mine": whole()}, STRICT)
    assert entries == ENTRIES
    assert "GPU_MANAGER_ALLOW_COMMANDS=true" in problems["mine"]
    assert used_entries(FILE, {"mine": whole()}, OPEN).entries["mine"] == read()


@pytest.mark.parametrize(
    ("name", "declared", "limits", "why"),
    [
        ("judge-a", whole(), OPEN, "has an entry 'judge-a', which it uses"),
        ("judge-a", reference("wide"), STRICT, "has another entry 'judge-a', which it uses"),
        ("new", reference("nobody"), STRICT, "has no entry 'nobody'"),
        ("new", reference("judge-a", degrees=[2]), STRICT, "degrees: [2] should be different numbers out of those"),
        ("new", whole(memory_gb={"awake": 40}), OPEN, "needs 40 GB of each GPU, and the largest of this node has 24"),
        (
            "new",
            whole(degrees=[1, 2, 4], memory_gb={"awake": {"1": 60, "2": 30, "4": 16}}),
            OPEN,
            "needs 30 GB of each GPU, and the largest of this node has 24",
        ),
        ("new", whole(degrees=[4]), OPEN, "it needs 4 GPUs, and this node has 2"),
        ("new", Declared(1, None), OPEN, "cannot read its declaration"),
        ("new", Declared(1, Declaration()), OPEN, "its declaration is empty"),
    ],
)
def test_what_cannot_be_used_has_a_problem_and_changes_nothing_else(
    name: str, declared: Declared, limits: NodeLimits, why: str
) -> None:
    good = reference("judge-a", priority=3)
    entries, problems = used_entries(FILE, {name: declared, "good": good}, limits)
    assert why in problems[name]
    assert list(problems) == [name]
    assert entries == {**ENTRIES, "good": read(priority=3)}


def test_an_entry_is_used_if_an_engine_of_one_degree_fits() -> None:
    split = whole(degrees=[1, 2], memory_gb={"awake": {"1": 60, "2": 20}})
    entries, problems = used_entries(NO_FILE, {"split": split}, OPEN)
    assert (list(entries), problems) == (["split"], {})


def test_a_missing_program_and_a_foreign_gpu_are_named() -> None:
    missing = read_entries(msgspec.json.encode({"x": entry(command=["no-such-program-7", "{port}"])}))["x"]
    given = read_entries(msgspec.json.encode({"x": entry(backend="vllm", command=None, url="http://127.0.0.1:1",
                                                         first_gpu=5)}))["x"]  # fmt: skip
    declared = {"a": Declared(1, Declaration(whole=missing)), "b": Declared(2, Declaration(whole=given))}
    entries, problems = used_entries(NO_FILE, declared, OPEN)
    assert entries == {}
    assert problems["a"].startswith("command: there is no program 'no-such-program-7' on this node that this account")
    assert "its engine would be on GPU 5, and this node has 2 GPUs" in problems["b"]


def test_an_entry_of_the_file_that_cannot_run_has_a_problem_and_stops_no_other(tmp_path: Path) -> None:
    plain = tmp_path / "server.sh"
    plain.write_text("#!/bin/sh\n")
    huge, given = read(memory_gb={"awake": 999}), {"backend": "vllm", "command": None, "url": "http://127.0.0.1:1"}
    wrong = {
        "huge": huge,
        "not-executable": msgspec.structs.replace(huge, memory_gb=MemoryNeed(awake=1), command=[str(plain), "{port}"]),
        "elsewhere": read_entries(msgspec.json.encode({"x": entry(**given, first_gpu=5)}))["x"],
    }
    entries, problems = used_entries(FileEntries({**wrong, **ENTRIES}, {"typo": "backend: wrong"}), {}, STRICT)
    assert entries == ENTRIES
    assert problems.keys() == {*wrong, "typo"}
    assert "that this account can execute" in problems["not-executable"]
    assert problems["typo"] == "backend: wrong"
    plain.chmod(0o755)
    assert "not-executable" in used_entries(FileEntries(wrong, {}), {}, STRICT).entries


def test_a_program_that_is_away_for_a_moment_stops_no_service_that_is_used() -> None:
    away = msgspec.structs.replace(read(), command=["no-such-program-7", "{port}"])
    file = FileEntries({"a": away}, {})
    assert used_entries(file, {}, STRICT).entries == {}
    assert used_entries(file, {}, STRICT, {"a": away}) == ({"a": away}, {})
    assert used_entries(file, {}, STRICT, {"a": read()}).entries == {}


def test_declarations_cannot_use_a_wrong_entry_of_the_file_or_its_name() -> None:
    file = FileEntries(ENTRIES, {"typo": "backend: must be one of process, sglang"})
    declared = {"typo": whole(), "new": reference("typo")}
    entries, problems = used_entries(file, declared, OPEN)
    assert entries == ENTRIES
    assert "of this node has an entry 'typo'" in problems["typo"]
    assert problems["new"].endswith("of this node has a wrong entry 'typo': backend: must be one of process, sglang")


def test_a_node_without_gpus_uses_no_declaration() -> None:
    assert used_entries(NO_FILE, {"a": whole()}, NodeLimits(True, ())).problems["a"].startswith("it needs 1 GPUs")
