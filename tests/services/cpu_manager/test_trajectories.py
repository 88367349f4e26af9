"""Attempts in a trajectory's environment: one outcome a grant, and creation by the first one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.cpu_manager.environments.dop import with_dop
from services.cpu_manager.environments.protocol import ActEnd, BadEnvironment, RuntimeUnavailable
from services.cpu_manager.kinds import EnvBash
from services.cpu_manager.managed_environments import NONE_HERE
from shared.messages.environments import EnvironmentSpec
from shared.messages.outcomes import EnvironmentHeld, Finished
from shared.policy.model.results import AttemptResult
from tests.services.cpu_manager.node_parts import NodeParts, grant, in_environment, turns


@pytest.fixture
async def parts() -> NodeParts:
    return NodeParts()


async def begun(parts: NodeParts, trajectory: str = "t") -> None:
    """Run the trajectory's first action."""
    parts.attempts.accept(in_environment(f"first of {trajectory}", trajectory, begins=True))
    assert (await parts.settled())[-1].result.status == "ok"
    parts.reports.clear()


async def test_the_first_action_creates_the_environment_and_acts_in_it(parts: NodeParts) -> None:
    parts.attempts.accept(in_environment("a", cores=2, begins=True, line="echo {dop}", timeout_s=7.0))

    (outcome,) = await parts.settled()
    assert (outcome.result.status, outcome.result.passed, outcome.result.score, outcome.result.environment_exists) == (
        "ok",
        True,
        None,
        True,
    )
    assert msgspec.json.decode(outcome.result.output) == {"exit_code": 0}
    (environment,) = parts.runtime.made
    reported = with_dop(EnvBash(line="echo {dop}"), 2)
    assert environment.acts == [("env.bash", reported, frozenset({0, 1}), 7.0)]
    assert parts.ended() == []


async def test_later_actions_use_it(parts: NodeParts) -> None:
    await begun(parts)
    parts.attempts.accept(in_environment("b"))
    await parts.settled()
    parts.attempts.accept(in_environment("c", begins=True))  # it exists already and is not created again
    await parts.settled()

    (environment,) = parts.runtime.made
    assert len(environment.acts) == 3


async def test_creation_counts_as_execution_on_the_granted_cores(parts: NodeParts) -> None:
    parts.runtime.create_waits = True
    parts.attempts.accept(in_environment("a", cores=3, begins=True))
    await turns()
    assert (parts.runtime.making, parts.units["cores"].used) == (1, 3)

    parts.clock.now += 4.0
    parts.runtime.go.set()
    (outcome,) = await parts.settled()
    assert (outcome.execution_s, outcome.queue_s, parts.units["cores"].used) == (4.0, 0.0, 0)


@pytest.mark.parametrize(
    ("fails", "status"), [(BadEnvironment("no such image"), "refused"), (RuntimeUnavailable("no engine"), "lost")]
)
async def test_a_failed_creation_is_reported_only_by_its_outcome(
    parts: NodeParts, fails: Exception, status: str
) -> None:
    parts.runtime.fails = fails
    parts.attempts.accept(in_environment(begins=True))

    (outcome,) = await parts.settled()
    await turns()
    assert (outcome.result.status, outcome.result.reason, outcome.result.environment_exists) == (
        status,
        str(fails),
        False,
    )
    assert (parts.ended(), parts.registry.held(), parts.memory.used) == ([], [], 0)


async def test_after_a_failed_creation_the_next_one_may_succeed(parts: NodeParts) -> None:
    parts.runtime.fails = RuntimeUnavailable("no engine")
    parts.attempts.accept(in_environment("a", begins=True))
    await parts.settled()
    parts.runtime.fails = None
    parts.attempts.accept(in_environment("a", attempt=2, begins=True))

    assert [(one.result.status, one.result.environment_exists) for one in await parts.settled()] == [
        ("lost", False),
        ("ok", True),
    ]


async def test_an_exception_of_a_runtime_is_our_failure(parts: NodeParts) -> None:
    parts.runtime.fails = KeyError("a bug")
    parts.attempts.accept(in_environment(begins=True))

    (outcome,) = await parts.settled()
    assert (outcome.result.status, outcome.result.environment_exists) == ("lost", False)
    assert outcome.result.reason == "creating the environment failed: KeyError"


async def test_an_image_without_a_runtime_here_is_refused(parts: NodeParts) -> None:
    wanted = EnvironmentSpec(image="debian:12", memory_mb=100)
    parts.attempts.accept(grant(work="env.bash", params=b'{"line":"ls"}', trajectory="t", environment=wanted))

    (outcome,) = await parts.settled()
    assert (outcome.result.status, outcome.result.environment_exists) == ("refused", False)
    assert outcome.result.reason == "this node has no docker runtime, which image 'debian:12' asks for"


async def test_an_attempt_cancelled_during_creation_leaves_no_environment(parts: NodeParts) -> None:
    parts.runtime.create_waits = True
    parts.attempts.accept(in_environment(begins=True))
    await turns()
    parts.attempts.revoke("a", 1)

    (outcome,) = await parts.settled()
    assert (outcome.result.status, outcome.result.environment_exists) == ("cancelled", False)
    assert (parts.runtime.making, parts.runtime.made, parts.memory.used, parts.ended()) == (0, [], 0, [])


async def test_an_attempt_cancelled_before_its_first_step_leaves_no_environment(parts: NodeParts) -> None:
    parts.attempts.accept(in_environment(begins=True))
    parts.attempts.revoke("a", 1)

    assert [(one.result.status, one.result.environment_exists) for one in await parts.settled()] == [
        ("cancelled", False)
    ]
    assert (parts.runtime.made, parts.memory.used, parts.units["cores"].used) == ([], 0, 0)


async def test_without_an_environment_and_its_specification_it_is_lost(parts: NodeParts) -> None:
    parts.attempts.accept(in_environment())

    (outcome,) = await parts.settled()
    assert (outcome.result.status, outcome.result.reason) == ("environment-lost", NONE_HERE.reason)
    assert outcome.result.environment_exists, "this attempt was not to create one"


# ---- how actions end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (ActEnd(ended_by="done", passed=False, output={"exit_code": 3}, reason="exit code 3"), "ok"),
        (ActEnd(ended_by="wall-limit", reason="no end after 10 s", cpu_s=9.5), "timeout"),
        (ActEnd(ended_by="refused", reason="no such thing here"), "refused"),
        (ActEnd(ended_by="lost", reason="the helper is gone", peak_memory_bytes=7), "lost"),
    ],
)
async def test_an_action_ends_as_its_environment_reports(parts: NodeParts, end: ActEnd, status: str) -> None:
    await begun(parts)
    parts.runtime.act = lambda _: end
    parts.attempts.accept(in_environment("b"))

    (outcome,) = await parts.settled()
    reported = (
        outcome.result.passed,
        outcome.result.reason,
        outcome.result.usage["cpu_s"],
        outcome.result.peak_memory_bytes,
    )
    assert outcome.result.status == status
    assert reported == (end.passed, end.reason, end.cpu_s, end.peak_memory_bytes)
    assert msgspec.json.decode(outcome.result.output) == end.output
    assert (len(parts.registry.held()), parts.ended()) == (1, [])


async def test_a_cancelled_action_is_cleaned_up_and_its_environment_stays(parts: NodeParts) -> None:
    await begun(parts)
    parts.runtime.waits = True
    parts.attempts.accept(in_environment("b"))
    await turns()
    parts.attempts.revoke("b", 1)
    parts.attempts.revoke("b", 1)  # repeated: it does not disturb the cleanup

    assert [one.result.status for one in await parts.settled()] == ["cancelled"]
    assert (parts.runtime.made[0].cleaned, len(parts.registry.held()), parts.units["cores"].used) == (1, 1, 0)


async def test_an_environment_that_died_in_an_action_is_reported_after_its_outcome(parts: NodeParts) -> None:
    await begun(parts)

    def die(environment: Any) -> ActEnd:
        environment.alive = False
        return ActEnd(ended_by="lost", reason="its container was killed")

    parts.runtime.act = die
    parts.attempts.accept(in_environment("b"))
    await parts.settled()
    await turns()

    assert [type(one).__name__ for one in parts.reports] == ["Finished", "EnvironmentEnded"]
    assert (parts.ended(), parts.memory.used, parts.runtime.made[0].closed) == ([("t", "lost")], 0, True)
    parts.attempts.accept(in_environment("c"))
    late = (await parts.settled())[-1]
    assert (late.result.status, late.result.reason) == ("environment-lost", "its container was killed")


async def test_an_exception_in_an_action_is_our_failure(parts: NodeParts) -> None:
    await begun(parts)

    def crash(_: Any) -> ActEnd:
        raise KeyError("a bug")

    parts.runtime.act = crash
    parts.attempts.accept(in_environment("b"))

    assert [(one.result.status, one.result.reason) for one in await parts.settled()] == [
        ("lost", "the action failed: KeyError")
    ]


async def test_an_action_without_an_end_is_our_failure() -> None:
    parts = NodeParts(guard_s=0.02)
    await begun(parts)
    parts.runtime.waits = True
    parts.attempts.accept(in_environment("b", timeout_s=0.01))

    (outcome,) = await parts.settled()
    assert (outcome.result.status, outcome.result.reason) == ("lost", "no end 0.02 s after its limit of 0.01 s")


@pytest.mark.parametrize(("work", "params"), [("work", b"{}"), ("env.bash", b'{"lime":"ls"}'), ("env.read", b"no")])
async def test_malformed_actions_are_refused_before_creation(parts: NodeParts, work: str, params: bytes) -> None:
    parts.attempts.accept(in_environment(work=work, params=params, begins=True))

    assert [(one.result.status, one.result.environment_exists) for one in await parts.settled()] == [("refused", False)]
    assert parts.runtime.made == []


# ---- sizes ---------------------------------------------------------------------------------------------------------


async def test_output_of_a_command_is_truncated_and_flagged() -> None:
    parts = NodeParts(output_bytes=100)
    await begun(parts)
    parts.runtime.act = lambda _: ActEnd(ended_by="done", passed=True, output={"output": "x" * 1000})
    parts.attempts.accept(in_environment("b"))

    (outcome,) = await parts.settled()
    assert (outcome.result.passed, msgspec.json.decode(outcome.result.output)["truncated"]) == (True, True)


@pytest.mark.parametrize("work", ["env.read", "env.download", "env.list"])
async def test_a_fetched_file_is_whole_or_absent(work: str) -> None:
    parts = NodeParts(output_bytes=100)
    await begun(parts)
    params = msgspec.json.encode({"path": "f"})
    parts.runtime.act = lambda _: ActEnd(ended_by="done", passed=True, output={"content": "x" * 86})
    parts.attempts.accept(in_environment("fits", work=work, params=params))
    await parts.settled()
    parts.runtime.act = lambda _: ActEnd(ended_by="done", passed=True, output={"content": "x" * 87})
    parts.attempts.accept(in_environment("too large", work=work, params=params))

    fits, too_large = await parts.settled()
    assert (fits.result.passed, msgspec.json.decode(fits.result.output)) == (True, {"content": "x" * 86})
    output = "101 bytes of result; this node sends 100 at most"
    assert (too_large.result.status, too_large.result.passed, too_large.result.reason) == ("ok", False, output)
    assert msgspec.json.decode(too_large.result.output) == {"error": output}


async def test_a_file_that_is_too_large_is_a_result(parts: NodeParts) -> None:
    await begun(parts)
    parts.runtime.act = lambda _: ActEnd(ended_by="refused", reason="f is larger than 1000 bytes")
    parts.attempts.accept(in_environment("b", work="env.read", params=b'{"path":"f"}'))

    (outcome,) = await parts.settled()
    assert (outcome.result.status, outcome.result.passed, outcome.result.reason) == (
        "ok",
        False,
        "f is larger than 1000 bytes",
    )
    assert msgspec.json.decode(outcome.result.output) == {"error": "f is larger than 1000 bytes"}


# ---- beside other work ---------------------------------------------------------------------------------------------


async def test_it_starts_before_waiting_grants_if_cores_are_free(parts: NodeParts) -> None:
    await begun(parts)
    parts.grader.waits = True
    parts.attempts.accept(grant("runs", cores=2))
    parts.attempts.accept(grant("waits", cores=3))
    parts.attempts.accept(in_environment("b", cores=2))
    await turns()

    assert [one.action for one in parts.finished()] == ["b"]
    await parts.attempts.stop()


async def test_it_waits_for_cores_if_none_are_free(parts: NodeParts) -> None:
    parts.grader.waits = True
    parts.attempts.accept(grant("runs", cores=4))
    parts.attempts.accept(in_environment("b", begins=True))
    await turns()
    assert [(one.action, one.queued) for one in parts.attempts.held_grants()] == [("runs", False), ("b", True)]
    assert parts.attempts.held_environments() == [
        EnvironmentHeld(trajectory="t", units={"memory_mb": 100, "starts": 1})
    ]

    parts.grader.go.set()
    assert [one.result.status for one in await parts.settled()] == ["ok", "ok"]


async def test_two_actions_in_one_environment_take_turns(parts: NodeParts) -> None:
    await begun(parts)
    parts.runtime.waits = True
    for name in ("b", "c"):
        parts.attempts.accept(in_environment(name))
    await turns()
    assert len(parts.runtime.made[0].acts) == 2

    parts.runtime.go.set()
    assert [one.result.status for one in await parts.settled()] == ["ok", "ok"]


async def test_memory_is_held_from_creation_until_closing(parts: NodeParts) -> None:
    parts.runtime.create_waits = True
    parts.attempts.accept(in_environment("a", begins=True))
    making = EnvironmentHeld(trajectory="t", units={"memory_mb": 100, "starts": 1})
    assert (parts.memory.used, parts.registry.starts.used, parts.attempts.held_environments()) == (100, 1, [making])
    parts.runtime.go.set()
    await parts.settled()
    assert parts.registry.starts.used == 0
    assert parts.attempts.held_environments() == [EnvironmentHeld(trajectory="t", units={"memory_mb": 100})]
    parts.runtime.may_close.clear()
    parts.attempts.close_environment("t")
    await turns()
    assert (parts.memory.used, len(parts.attempts.held_environments()), parts.ended()) == (100, 1, [])

    parts.runtime.may_close.set()
    await turns()
    assert (parts.memory.used, parts.attempts.held_environments(), parts.ended()) == (0, [], [("t", "closed")])


async def test_memory_is_not_overcommitted() -> None:
    parts = NodeParts(memory_mb=150)
    await begun(parts)
    parts.attempts.accept(in_environment("b", "another", begins=True))

    (outcome,) = await parts.settled()
    assert (outcome.result.status, outcome.result.environment_exists) == ("lost", False)
    assert outcome.result.reason == "100 of the 150 MB for environments are not free"
    assert parts.memory.used == 100


async def test_outcomes_of_other_kinds_have_no_environment_fields(parts: NodeParts) -> None:
    parts.attempts.accept(grant("a"))

    assert await parts.settled() == [
        Finished(
            action="a",
            node="n",
            incarnation="1",
            epoch=1,
            attempt=1,
            stage=0,
            result=AttemptResult("ok", True, 1.0, usage={"cpu_s": 0.0}),
            units={"cores": 1},
        )
    ]
