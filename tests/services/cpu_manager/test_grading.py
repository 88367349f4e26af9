"""Artifacts of attempts in the sandbox: stored before the outcome, and their failures are no verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from services.cpu_manager.graders.code_run import CodeRunGrader
from services.cpu_manager.graders.compile_cache import CompileCache
from services.cpu_manager.graders.programs import Builder
from services.cpu_manager.grading import Grading
from services.cpu_manager.sandbox.protocol import Exit
from shared.messages.grants import Granted
from shared.node.artifacts import ArtifactDelayed, ArtifactUnavailable, NoArtifacts
from shared.policy.model.results import AttemptResult
from tests.services.cpu_manager.graders.sandboxes import LANGUAGES, FakeSandbox

LEFT = Exit(ended_by="exit", exit_code=0, files={"out": b"left"}, cpu_s=0.5)


@dataclass
class Kept(NoArtifacts):
    """Artifacts in memory; `fails` is raised instead."""

    fails: Exception | None = None
    stored: dict[str, bytes] = field(default_factory=dict)

    async def read(self, grant: Granted) -> bytes:
        if self.fails is not None:
            raise self.fails
        return self.stored[grant.action]

    async def store(self, grant: Granted, content: bytes) -> None:
        if self.fails is not None:
            raise self.fails
        self.stored[grant.action] = content


async def graded(artifacts: Kept, end: Exit = LEFT, *, most: int = 100, **params: Any) -> AttemptResult:
    graders = {"code.run": CodeRunGrader(Builder(LANGUAGES, CompileCache()))}
    grading = Grading(graders, FakeSandbox(lambda _: end), 1 << 20, 5.0, artifacts, most)
    grant = Granted(
        action="A", epoch=1, attempt=1, tenant="t", stage=0, work="code.run", units={"cores": 1}, timeout_s=10.0,
        params=msgspec.json.encode({"code": "x", **params}), budget_s=60.0,
    )  # fmt: skip
    return await grading.grade(grant, frozenset({0}))


async def test_an_artifact_is_stored_with_the_verdict_that_passed() -> None:
    kept = Kept()
    result = await graded(kept, artifact="out")
    assert (result.status, result.passed) == ("ok", True)
    assert kept.stored == {"A": b"left"}


async def test_a_verdict_that_has_not_passed_stores_none() -> None:
    kept = Kept()
    assert (await graded(kept, Exit(ended_by="exit", exit_code=1, files={"out": b"x"}), artifact="out")).passed is False
    assert kept.stored == {}


async def test_an_artifact_that_is_too_large_fails_and_is_not_stored() -> None:
    kept = Kept()
    result = await graded(kept, most=3, artifact="out")
    assert (result.status, result.passed, result.score) == ("ok", False, 0.0)
    assert msgspec.json.decode(result.output)["error_class"] == "ArtifactTooLarge"
    assert kept.stored == {}


@pytest.mark.parametrize(
    ("error", "status"), [(ArtifactUnavailable("away"), "lost"), (ArtifactDelayed("full", 2.0), "postponed")]
)
@pytest.mark.parametrize("params", [{"artifact": "out"}, {"artifact_as": "in"}])
async def test_an_artifact_that_cannot_be_used_is_no_verdict(
    error: Exception, status: str, params: dict[str, Any]
) -> None:
    result = await graded(Kept(error), **params)
    assert (result.status, result.passed, result.score) == (status, None, None)
    assert str(error) in result.reason
