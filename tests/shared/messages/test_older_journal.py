"""Entries of the journal outlive the version that wrote them: each reads the other's, older and newer."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.messages.actions import ACTIONS, ActionSubmitted, StageWork

STAGE: list[Any] = ["run", "code.run", "cores@default", {"cores": [1, 1]}, 10.0, b"{}", True]
"""A stage as written before stages had a score for a time limit."""


class OlderStage(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    name: str
    kind: str
    pool: str
    cost: dict[str, tuple[int, int]]
    timeout_s: float
    params: bytes
    repeatable: bool = True


def test_an_older_entry_is_read() -> None:
    entry = {"kind": "action.submitted.v1", "action": "a", "tenant": "ada", "stages": [STAGE], "budget_s": 60.0}
    read = ACTIONS.decode(msgspec.msgpack.encode(entry))
    assert isinstance(read, ActionSubmitted)
    assert (read.stages[0].name, read.stages[0].repeatable, read.stages[0].timeout_score) == ("run", True, None)


def test_an_older_version_reads_ours() -> None:
    stage = StageWork(
        name="run", kind="code.run", pool="cores@default", cost={"cores": (1, 1)}, timeout_s=10.0, params=b"{}",
        timeout_score=-2.0,
    )  # fmt: skip
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(stage), type=OlderStage)
    assert read == msgspec.convert(STAGE, OlderStage)
