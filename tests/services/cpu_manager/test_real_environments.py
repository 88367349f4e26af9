"""A node with a real sandbox and its local runtime: grants in, outcomes and ends out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from services.cpu_manager.environments.detection import MeshContext, open_runtimes
from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.rungs import NoSandboxError
from services.cpu_manager.settings import CpuManagerSettings
from shared.messages.outcomes import Finished
from tests.services.cpu_manager.node_parts import NodeParts, in_environment, turns
from tests.shared.bus.soon import soon

SETTINGS = CpuManagerSettings.model_validate({"engine": "none", "output_bytes": 4096})
PATIENCE_S = 30.0


@pytest.fixture
async def parts() -> AsyncIterator[NodeParts]:
    try:
        sandbox = await LocalSandbox.create()
    except NoSandboxError as error:
        pytest.skip(f"no sandbox can be had here: {error}")
    try:
        async with open_runtimes(SETTINGS, sandbox, MeshContext()) as detected:
            if not detected.runtimes.names:
                pytest.skip(f"no local runtime: {detected.labels['runtime.local']}")
            parts = NodeParts(
                cores=sorted(os.sched_getaffinity(0)),
                output_bytes=SETTINGS.output_bytes,
                guard_s=PATIENCE_S,
                runtimes=detected.runtimes,
            )
            yield parts
            await parts.attempts.stop()
    finally:
        await sandbox.close()


async def act(parts: NodeParts, action: str, line: str, **rest: Any) -> tuple[Finished, Any]:
    """Outcome and output of a bash line in the trajectory's environment."""
    parts.attempts.accept(in_environment(action, line=line, **{"timeout_s": PATIENCE_S, **rest}))
    outcome = (await parts.settled())[-1]
    return outcome, msgspec.json.decode(outcome.result.output).get("output")


async def test_an_environment_lasts_from_one_action_to_the_next_until_it_is_closed(parts: NodeParts) -> None:
    first, _ = await act(parts, "a", "seen=1; mkdir d; cd d; echo kept > file", begins=True)
    second, output = await act(parts, "b", 'echo "$seen in $(basename $PWD): $(cat file)"')
    third, _ = await act(parts, "c", "exit 3")

    assert [(one.result.status, one.result.passed) for one in (first, second, third)] == [
        ("ok", True),
        ("ok", True),
        ("ok", False),
    ]
    assert output == "1 in d: kept\n"
    parts.attempts.close_environment("t")
    await parts.registry.closed(PATIENCE_S)
    assert (parts.ended(), parts.memory.used) == ([("t", "closed")], 0)
    assert (await act(parts, "late", "true"))[0].result.status == "environment-lost"


async def test_an_action_at_its_limit_or_cancelled_keeps_the_environment(parts: NodeParts) -> None:
    await act(parts, "a", "echo kept > file", begins=True)
    slow, _ = await act(parts, "b", "sleep 600", timeout_s=0.3)
    parts.attempts.accept(in_environment("c", line="touch begun; sleep 600", timeout_s=600.0))
    await turns(20)
    parts.attempts.revoke("c", 1)
    cancelled = (await parts.settled())[-1]
    after, output = await act(parts, "d", "cat file")

    assert (slow.result.status, cancelled.result.status) == ("timeout", "cancelled")
    assert (after.result.status, output, parts.ended()) == ("ok", "kept\n", [])


async def test_a_file_above_the_output_limit_is_not_sent_in_part(parts: NodeParts) -> None:
    await act(parts, "a", "head -c 100000 /dev/zero | tr '\\0' x > large; echo small > small", begins=True)
    for path in ("small", "large"):
        params = msgspec.json.encode({"path": path})
        parts.attempts.accept(in_environment(path, work="env.read", params=params, timeout_s=PATIENCE_S))
    _, small, large = await parts.settled()

    assert (small.result.passed, msgspec.json.decode(small.result.output)["content"]) == (True, "small\n")
    assert (large.result.status, large.result.passed) == ("ok", False)
    assert list(msgspec.json.decode(large.result.output)) == ["error"]
    assert "4096" in large.result.reason


async def test_a_failed_set_up_is_the_trainers_error(parts: NodeParts) -> None:
    grant = in_environment("a", begins=True)
    assert grant.environment is not None
    broken = msgspec.structs.replace(grant.environment, setup=["echo no luck; false"])
    parts.attempts.accept(msgspec.structs.replace(grant, environment=broken))

    (outcome,) = await parts.settled()
    assert (outcome.result.status, outcome.result.environment_exists) == ("refused", False)
    assert "no luck" in outcome.result.reason
    assert (parts.ended(), parts.memory.used) == ([], 0)


async def test_closing_and_stopping_end_actions_and_environments(parts: NodeParts) -> None:
    await act(parts, "a", "true", begins=True)
    await act(parts, "b", "true", trajectory="another", begins=True)
    parts.attempts.accept(in_environment("c", line="sleep 600", timeout_s=600.0))
    parts.attempts.accept(in_environment("d", "another", line="sleep 600", timeout_s=600.0))
    parts.attempts.close_environment("t")

    async def closed() -> bool:
        return parts.ended() == [("t", "closed")]

    await soon(closed, within_s=PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        await parts.attempts.stop()

    statuses = {one.action: one.result.status for one in parts.finished()}
    assert (statuses["c"], statuses["d"]) == ("cancelled", "environment-lost")
    assert sorted(parts.ended()) == [("another", "lost"), ("t", "closed")]
    assert (parts.memory.used, parts.units["cores"].used) == (0, 0)
