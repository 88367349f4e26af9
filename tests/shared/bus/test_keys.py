"""Every key has the literal name that stored data has, and a row in ARCHITECTURE."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from shared.bus import keys
from shared.bus.keys import KeyList, Role

NAMED = {
    "action": (("A",), "action:A"),
    "batch": (("A",), "batch:A"),
    "results": (("A",), "results:A"),
    "archived_of": (("A",), "archived:A"),
    "environments_of": (("A",), "environments:A"),
    "trajectory": (("A",), "trajectory:A"),
    "acted": (("A",), "acted:A"),
    "trace": (("A",), "trace:A"),
    "task": (("T", "A"), "task:T:A"),
    "tasks": (("T",), "tasks:T"),
    "batch_key": (("T", "A", "K"), "batchkey:T:A:K"),
    "trajectory_key": (("T", "K"), "trajectorykey:T:K"),
    "retries": (("D",), "retry:D"),
    "swerex": (("A",), "swerex:A"),
    "swerex_closing": (("A",), "swerex:A:closing"),
    "swerex_partial": (("A",), "swerex:A:partial"),
    "leader": ((Role.DISPATCHER,), "leader:dispatcher"),
    "epoch": ((Role.PLANNER,), "epoch:planner"),
    "replica": (("A",), "replica:A"),
    "pulled": (("E", "N"), "pulled:E:N"),
    "grants": (("N", "I"), "grants.N.I"),
    "expiring": ((7,), "expiring:7"),
}
ALONE = {
    "actions", "outcomes", "answered", "nodes", "batches", "trajectories", "batches:open", "trajectories:open",
    "trajectories:due", "trajectories:ended", "placements", "backlog", "backlog:reasons", "kept", "kept:batches",
    "unarchived", "unarchived:actions", "archived", "expiring", "ids", "mesh", "schema", "hellos", "hellos:at",
    "generations", "suspects", "tenants", "tenants:changes", "quotas", "quotas:holds", "quotas:levels", "quotas:brakes",
    "quotas:estimates", "quota-changes", "leases:due", "leases:fences", "serving",
    "serving:declared", "serving:changes", "workers", "workers:views", "router:pins", "routers", "routing",
}  # fmt: skip
GROUPS = {
    "batch_group": ("batch:A", "results:A", "archived:A", "environments:A"),
    "submission_group": ("batch:A", "archived:A"),
    "trajectory_group": ("trajectory:A", "acted:A"),
}
DOCUMENT = Path(__file__).parents[3] / "ARCHITECTURE.md"


@pytest.mark.parametrize("name", NAMED)
def test_a_key_has_its_literal_name(name: str) -> None:
    arguments, expected = NAMED[name]
    assert getattr(keys, name)(*arguments) == expected


def test_the_lists_are_complete() -> None:
    made = {name for name, one in inspect.getmembers(keys, inspect.isfunction) if one.__module__ == keys.__name__}
    assert made == NAMED.keys() | GROUPS.keys()
    assert {value for name, value in vars(keys).items() if name.isupper() and isinstance(value, str)} == ALONE
    assert {role.value for role in Role} == {"dispatcher", "planner", "archiver", "router"}
    for name, expected in GROUPS.items():
        assert getattr(keys, name)("A") == expected


def test_every_key_is_in_the_document() -> None:
    text = DOCUMENT.read_text("utf-8").partition("## Streams")[2].partition("## The hot path")[0]
    for key in ALONE:
        assert f"`{key}`" in text, key
    for _, key in NAMED.values():
        prefix = key[: key.index(":" if ":" in key else ".") + 1]
        assert f"`{prefix}<" in text, prefix


def test_a_list_of_keys_has_each_group_once() -> None:
    touched = KeyList("first")
    positions = [touched.position(name, keys.trajectory_group) for name in ("a", "b", "a")]
    assert positions == [2, 4, 2]
    assert touched.position("a", keys.batch_group) == 6, "a batch of the same name has keys of its own"
    assert touched.listed[:5] == ["first", "trajectory:a", "acted:a", "trajectory:b", "acted:b"]
