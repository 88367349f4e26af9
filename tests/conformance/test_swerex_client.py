"""The published `swe-rex` client, unmodified, against a trajectory: lifecycle, sessions, the same exceptions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
from swerex import exceptions
from swerex.runtime.abstract import BashInterruptAction, CloseBashSessionRequest, Command, CreateBashSessionRequest
from swerex.runtime.remote import RemoteRuntime

from services.cpu_manager.environments.dop import with_dop
from services.cpu_manager.kinds import IN_ENVIRONMENTS, EnvBash, EnvExec
from shared.bus.connection import command, connect
from tests.conformance.swerex_server import SwerexTrajectory, serving_swerex


@pytest.fixture
async def remote(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SwerexTrajectory]:
    async with serving_swerex(redis_url, tmp_path_factory.mktemp("environment")) as remote:
        yield remote


@pytest.fixture
async def shell(remote: SwerexTrajectory) -> SwerexTrajectory:
    """A trajectory with an open session."""
    await remote.client.create_session(CreateBashSessionRequest())
    return remote


# ---- lifecycle -----------------------------------------------------------------------------------------------------


async def test_a_runtime_is_alive_until_it_is_closed(remote: SwerexTrajectory) -> None:
    assert await remote.client.is_alive()
    await remote.client.wait_until_alive(timeout=10)
    assert remote.node.granted == [], "no environment is created for this"

    await remote.client.close()

    answer = await remote.client.is_alive()
    assert (bool(answer), "closed" in answer.message) == (False, True)
    with pytest.raises(exceptions.SwerexException, match="is closed"):
        await remote.client.execute(Command(command=["true"]))


async def test_an_unopened_runtime_is_not_alive(remote: SwerexTrajectory) -> None:
    other = RemoteRuntime(auth_token="-", host=f"{remote.url}/v1/trajectories/t0123456789abcdef/swerex", timeout=20.0)

    with pytest.raises(exceptions.SwerexException, match="no trajectory"):
        await other.execute(Command(command=["true"]))
    assert not await other.is_alive()


async def test_a_lost_environment_is_reported_as_lost(shell: SwerexTrajectory) -> None:
    await shell.node.lose(shell.trajectory)

    with pytest.raises(exceptions.SwerexException, match="lost"):
        await shell.run("true")


# ---- sessions ------------------------------------------------------------------------------------------------------


async def test_a_session_is_begun_by_sourcing_what_it_shall(remote: SwerexTrajectory) -> None:
    (remote.root / "begin.sh").write_text("echo sourced")

    reply = await remote.client.create_session(CreateBashSessionRequest(startup_source=["begin.sh"], session="s"))

    assert (reply.output, reply.session_type) == ("sourced\n", "bash")


async def test_a_session_begins_once_and_ends_once(shell: SwerexTrajectory) -> None:
    with pytest.raises(exceptions.SessionExistsError):
        await shell.client.create_session(CreateBashSessionRequest())

    await shell.client.close_session(CloseBashSessionRequest())
    with pytest.raises(exceptions.SessionDoesNotExistError):
        await shell.client.close_session(CloseBashSessionRequest())
    with pytest.raises(exceptions.SessionDoesNotExistError):
        await shell.run("true")
    await shell.client.create_session(CreateBashSessionRequest())


async def test_a_session_that_did_not_begin_is_not_there(remote: SwerexTrajectory) -> None:
    with pytest.raises(exceptions.CommandTimeoutError):
        await remote.client.create_session(
            CreateBashSessionRequest(startup_source=["<(sleep 60)"], startup_timeout=0.2)
        )

    with pytest.raises(exceptions.SessionDoesNotExistError):
        await remote.run("true")


async def test_a_command_is_observed_with_output_and_exit_code(shell: SwerexTrajectory) -> None:
    done = await shell.run("echo out; echo err >&2")

    assert (done.output, done.exit_code, done.failure_reason) == ("out\nerr\n", 0, "")


async def test_colours_are_no_part_of_what_is_observed(shell: SwerexTrajectory) -> None:
    assert (await shell.run(r"printf '\033[31mred\033[0m\r\n'")).output == "red\n"


async def test_a_failure_is_raised_reported_or_ignored_by_option(shell: SwerexTrajectory) -> None:
    with pytest.raises(exceptions.NonZeroExitCodeError, match=r"odd one: .*exit code 3"):
        await shell.run("echo x; exit 3", error_msg="odd one")

    assert (await shell.run("exit 3", check="silent")).exit_code == 3
    ignored = await shell.run("echo x; exit 3", check="ignore")
    assert (ignored.exit_code, ignored.output) == (None, "x\n")


async def test_a_time_limit_is_raised_with_the_output_so_far_and_an_interrupt_returns_it(
    shell: SwerexTrajectory,
) -> None:
    with pytest.raises(exceptions.CommandTimeoutError, match=r"0\.5.*begun") as raised:
        await shell.run("echo begun; sleep 60", timeout=0.5)
    assert raised.value.extra_info == {"output": "begun\n"}  # type: ignore[attr-defined]  # the client sets it

    for output in ("begun\n", ""):
        done = await shell.client.run_in_session(BashInterruptAction())
        assert (done.output, done.exit_code) == (output, 0)


async def test_a_command_outside_a_session_that_meets_its_limit_has_its_output_so_far(shell: SwerexTrajectory) -> None:
    script = "echo out; echo err >&2; sleep 60"
    with pytest.raises(exceptions.CommandTimeoutError, match=r"(?s)out.*err") as raised:
        await shell.client.execute(Command(command=["sh", "-c", script], timeout=0.5))
    assert raised.value.extra_info == {"stdout": "out\n", "stderr": "err\n"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("line", ["echo 'x", "if true", "echo a; ) b", "touch made\nif true", "touch made\necho $(("])
async def test_a_syntax_error_is_raised_as_such_and_nothing_of_the_line_runs(
    shell: SwerexTrajectory, line: str
) -> None:
    with pytest.raises(exceptions.BashIncorrectSyntaxError) as raised:
        await shell.run(line, check="silent")

    assert "line" in raised.value.extra_info["bash_stderr"]
    assert not (shell.root / "made").exists()


async def test_output_that_mentions_a_syntax_error_is_none(shell: SwerexTrajectory) -> None:
    assert (await shell.run("echo syntax error; false", check="silent")).exit_code == 1


async def test_several_lines_are_one_command(shell: SwerexTrajectory) -> None:
    done = await shell.run("cat <<E\none\nE\nfor i in 1 2; do\n echo $i\ndone")

    assert (done.output, done.exit_code) == ("one\n1\n2\n", 0)


async def test_a_call_that_needs_a_terminal_is_refused_with_a_message(shell: SwerexTrajectory) -> None:
    with pytest.raises(exceptions.SwerexException, match="no terminal"):
        await shell.run("python", is_interactive_command=True)
    with pytest.raises(exceptions.SwerexException, match="no terminal"):
        await shell.run("python", expect=[">>>"])


async def test_a_call_that_is_made_again_is_not_done_again(shell: SwerexTrajectory) -> None:
    body = {"action_type": "bash", "command": "echo x >> file; cat file"}

    first = await shell.post("run_in_session", body, "one")
    assert await shell.post("run_in_session", body, "one") == first == (200, first[1])
    assert (shell.root / "file").read_text() == "x\n"

    begun = await shell.post("create_session", {"session": "s"}, "two")
    assert await shell.post("create_session", {"session": "s"}, "two") == begun
    assert begun[0] == 200


async def test_a_session_with_a_repeated_close_ends_once(shell: SwerexTrajectory) -> None:
    first = await shell.post("close_session", {}, "end")
    assert first == (200, {"session_type": "bash"})
    assert await shell.post("close_session", {}, "end") == first
    assert (await shell.post("close_session", {}, "other"))[0] == 511

    await shell.client.create_session(CreateBashSessionRequest())
    assert await shell.post("close_session", {}, "end") == first
    assert (await shell.run("echo there")).output == "there\n", "a repeat does not end the next of that name"
    assert (await shell.post("close_session", {"session": "s"}, "end"))[0] == 511, "it is another request"


async def test_the_end_of_a_session_is_brought_to_its_end_by_a_repeat(shell: SwerexTrajectory) -> None:
    """A replica may die after the end of the shell and before that is stored."""
    async with connect(shell.redis_url, name="test") as redis:
        key = f"swerex:{shell.trajectory}"
        claim = await command(redis, "HGET", key, "default")
        await shell.post("close_session", {}, "end")
        await command(redis, "HSET", key, "default", claim)

    assert (await shell.post("close_session", {}, "end"))[0] == 200
    with pytest.raises(exceptions.SessionDoesNotExistError):
        await shell.run("true")


async def test_braces_of_the_caller_are_kept(shell: SwerexTrajectory) -> None:
    """A node would put its number of cores there."""
    await shell.run("echo '{dop}'")
    await shell.client.execute(Command(command=["echo", "{dop}"]))

    kinds = [(grant, IN_ENVIRONMENTS[grant.work].params) for grant in shell.node.granted[1:]]
    assert [with_dop(msgspec.json.decode(grant.params, type=kind), 1) for grant, kind in kinds] == [
        EnvBash(line="echo '{dop}'", literal=True, output_bytes=4 << 20),
        EnvExec(argv=["echo", "{dop}"], env={"TREADLE_DOP": "1"}, literal=True, output_bytes=4 << 20),
    ]


async def test_an_invalid_call_is_a_problem_document(shell: SwerexTrajectory) -> None:
    for verb, body in [("run_in_session", {"action_type": "odd"}), ("execute", {}), ("read_file", {"path": 3})]:
        status, problem = await shell.post(verb, body, "x")
        assert (status, problem["title"]) == (422, "Bad request")
    assert (await shell.post("execute", {"command": "true"}, "x" * 200))[0] == 422
