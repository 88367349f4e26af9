"""The published `swe-rex` client, unmodified, against a trajectory: the same verbs, the same exceptions.

The node behind the door is played (its shells keep nothing between lines); with real environments the same client runs
in tests/e2e.
"""

from __future__ import annotations

import base64
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from swerex import exceptions
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)
from swerex.runtime.remote import RemoteRuntime

from services.proxy.app import create_app
from services.proxy.settings import ProxySettings
from tests.services.proxy.door import Folder, PlayedNode, serving

LIMIT = 400_000
"""Of a body."""


class Lent:
    """A trajectory in the client's hands, and what stands behind it."""

    def __init__(self, url: str, trajectory: str, node: PlayedNode, root: Path) -> None:
        self.url = url
        self.trajectory = trajectory
        self.node = node
        self.root = root
        self.client = RemoteRuntime(auth_token="-", host=f"{url}/v1/trajectories/{trajectory}/swerex", timeout=20.0)

    async def run(self, command: str, **rest: Any) -> BashObservation:
        return await self.client.run_in_session(BashAction(command=command, **rest))

    async def post(self, verb: str, body: Any, request_id: str) -> tuple[int, dict[str, Any]]:
        """As the client sends, with a request id of ours."""
        path = f"{self.url}/v1/trajectories/{self.trajectory}/swerex/{verb}"
        async with (
            aiohttp.ClientSession(headers={"X-Request-ID": request_id}) as http,
            http.post(path, json=body) as reply,
        ):
            return reply.status, await reply.json()


@pytest.fixture
async def lent(redis_url: str, tmp_path: Path) -> AsyncIterator[Lent]:
    settings = ProxySettings.model_validate({"treadle": {"redis_url": redis_url}, "max_body_bytes": LIMIT})
    root = tmp_path / "environment"
    root.mkdir()
    async with (
        PlayedNode.up(redis_url, Folder(root)) as node,
        serving(create_app(settings)) as url,
        aiohttp.ClientSession(url) as http,
        http.post("/v1/trajectories", json={"environment": {"memory_mb": 64}}) as reply,
    ):
        lent = Lent(url, (await reply.json())["id"], node, root)
        yield lent


@pytest.fixture
async def shell(lent: Lent) -> Lent:
    """With a session."""
    await lent.client.create_session(CreateBashSessionRequest())
    return lent


# ---- life ----------------------------------------------------------------------------------------------------------


async def test_a_runtime_is_alive_until_it_is_closed(lent: Lent) -> None:
    assert await lent.client.is_alive()
    await lent.client.wait_until_alive(timeout=10)
    assert lent.node.granted == [], "nothing is made for this"

    await lent.client.close()

    answer = await lent.client.is_alive()
    assert (bool(answer), "closed" in answer.message) == (False, True)
    with pytest.raises(exceptions.SwerexException, match="is closed"):
        await lent.client.execute(Command(command=["true"]))


async def test_a_runtime_nobody_opened_is_not_alive(lent: Lent) -> None:
    other = RemoteRuntime(auth_token="-", host=f"{lent.url}/v1/trajectories/t0123456789abcdef/swerex", timeout=20.0)

    with pytest.raises(exceptions.SwerexException, match="no trajectory"):
        await other.execute(Command(command=["true"]))
    assert not await other.is_alive()


async def test_an_environment_that_is_lost_says_so(shell: Lent) -> None:
    await shell.node.lose(shell.trajectory)

    with pytest.raises(exceptions.SwerexException, match="lost"):
        await shell.run("true")


# ---- sessions ------------------------------------------------------------------------------------------------------


async def test_a_session_is_begun_by_sourcing_what_it_shall(lent: Lent) -> None:
    (lent.root / "begin.sh").write_text("echo sourced")

    reply = await lent.client.create_session(CreateBashSessionRequest(startup_source=["begin.sh"], session="s"))

    assert (reply.output, reply.session_type) == ("sourced\n", "bash")


async def test_a_session_begins_once_and_ends_once(shell: Lent) -> None:
    with pytest.raises(exceptions.SessionExistsError):
        await shell.client.create_session(CreateBashSessionRequest())

    await shell.client.close_session(CloseBashSessionRequest())
    with pytest.raises(exceptions.SessionDoesNotExistError):
        await shell.client.close_session(CloseBashSessionRequest())
    with pytest.raises(exceptions.SessionDoesNotExistError):
        await shell.run("true")
    await shell.client.create_session(CreateBashSessionRequest())


async def test_a_session_that_did_not_begin_is_not_there(lent: Lent) -> None:
    with pytest.raises(exceptions.CommandTimeoutError):
        await lent.client.create_session(CreateBashSessionRequest(startup_source=["<(sleep 60)"], startup_timeout=0.2))

    with pytest.raises(exceptions.SessionDoesNotExistError):
        await lent.run("true")


async def test_a_command_is_observed_with_output_and_exit_code(shell: Lent) -> None:
    done = await shell.run("echo out; echo err >&2")

    assert (done.output, done.exit_code, done.failure_reason) == ("out\nerr\n", 0, "")


async def test_colours_are_no_part_of_what_is_observed(shell: Lent) -> None:
    assert (await shell.run(r"printf '\033[31mred\033[0m\r\n'")).output == "red\n"


async def test_a_failure_is_raised_told_or_left_as_the_caller_wants(shell: Lent) -> None:
    with pytest.raises(exceptions.NonZeroExitCodeError, match=r"odd one: .*exit code 3"):
        await shell.run("echo x; exit 3", error_msg="odd one")

    assert (await shell.run("exit 3", check="silent")).exit_code == 3
    ignored = await shell.run("echo x; exit 3", check="ignore")
    assert (ignored.exit_code, ignored.output) == (None, "x\n")


async def test_a_time_limit_is_raised_and_an_interrupt_finds_nothing_left(shell: Lent) -> None:
    with pytest.raises(exceptions.CommandTimeoutError, match=r"0\.3"):
        await shell.run("sleep 60", timeout=0.3)

    done = await shell.client.run_in_session(BashInterruptAction())
    assert (done.output, done.exit_code) == ("", 0)


@pytest.mark.parametrize("line", ["echo 'x", "if true", "echo a; ) b", "touch made\nif true", "touch made\necho $(("])
async def test_what_bash_cannot_read_is_raised_as_that_and_nothing_of_it_is_done(shell: Lent, line: str) -> None:
    with pytest.raises(exceptions.BashIncorrectSyntaxError) as raised:
        await shell.run(line, check="silent")

    assert "line" in raised.value.extra_info["bash_stderr"]
    assert not (shell.root / "made").exists()


async def test_talking_of_a_syntax_error_is_none(shell: Lent) -> None:
    assert (await shell.run("echo syntax error; false", check="silent")).exit_code == 1


async def test_several_lines_are_one_command(shell: Lent) -> None:
    done = await shell.run("cat <<E\none\nE\nfor i in 1 2; do\n echo $i\ndone")

    assert (done.output, done.exit_code) == ("one\n1\n2\n", 0)


async def test_what_needs_a_terminal_is_refused_in_words(shell: Lent) -> None:
    with pytest.raises(exceptions.SwerexException, match="no terminal"):
        await shell.run("python", is_interactive_command=True)
    with pytest.raises(exceptions.SwerexException, match="no terminal"):
        await shell.run("python", expect=[">>>"])


async def test_a_call_that_is_made_again_is_not_done_again(shell: Lent) -> None:
    body = {"action_type": "bash", "command": "echo x >> file; cat file"}

    first = await shell.post("run_in_session", body, "one")
    assert await shell.post("run_in_session", body, "one") == first == (200, first[1])
    assert (shell.root / "file").read_text() == "x\n"

    begun = await shell.post("create_session", {"session": "s"}, "two")
    assert await shell.post("create_session", {"session": "s"}, "two") == begun
    assert begun[0] == 200


async def test_a_call_that_means_nothing_is_a_problem_like_everywhere(shell: Lent) -> None:
    for verb, body in [("run_in_session", {"action_type": "odd"}), ("execute", {}), ("read_file", {"path": 3})]:
        status, problem = await shell.post(verb, body, "x")
        assert (status, problem["title"]) == (422, "Bad request")
    assert (await shell.post("execute", {"command": "true"}, "x" * 200))[0] == 422


# ---- commands ------------------------------------------------------------------------------------------------------


async def test_a_command_of_words_runs_without_a_shell(lent: Lent) -> None:
    done = await lent.client.execute(Command(command=["printf", "%s", "$HOME; x"]))

    assert (done.stdout, done.stderr, done.exit_code) == ("$HOME; x", "", 0)


async def test_a_command_of_text_runs_in_one_where_it_shall(lent: Lent) -> None:
    (lent.root / "sub").mkdir()

    done = await lent.client.execute(Command(command="pwd; echo err >&2; exit 4", shell=True, cwd="sub"))

    assert (done.stdout.endswith("/sub\n"), done.stderr, done.exit_code) == (True, "err\n", 4)


async def test_streams_may_be_one(lent: Lent) -> None:
    done = await lent.client.execute(Command(command="echo a; echo b >&2", shell=True, merge_output_streams=True))

    assert (done.stdout, done.stderr) == ("a\nb\n", "")


async def test_an_environment_given_is_the_whole_environment(lent: Lent) -> None:
    done = await lent.client.execute(Command(command=["env"], env={"A": "1", "B": "two words"}))

    assert sorted(done.stdout.splitlines()) == ["A=1", "B=two words"]


async def test_a_checked_command_that_fails_is_raised(lent: Lent) -> None:
    with pytest.raises(exceptions.NonZeroExitCodeError, match=r"mine: .*exit code 1"):
        await lent.client.execute(Command(command=["false"], check=True, error_msg="mine"))


async def test_a_program_that_is_not_there_is_a_missing_file(lent: Lent) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        await lent.client.execute(Command(command=["nowhere"]))


async def test_a_command_out_of_time_is_raised(lent: Lent) -> None:
    with pytest.raises(exceptions.CommandTimeoutError):
        await lent.client.execute(Command(command=["sleep", "60"], timeout=0.2))


# ---- files ---------------------------------------------------------------------------------------------------------


async def test_a_file_is_written_with_its_directories_and_read(lent: Lent) -> None:
    await lent.client.write_file(WriteFileRequest(path="a/b.txt", content="grün\n"))

    assert (lent.root / "a" / "b.txt").read_text("utf-8") == "grün\n"
    assert (await lent.client.read_file(ReadFileRequest(path="a/b.txt"))).content == "grün\n"


async def test_a_file_is_read_as_its_encoding_says(lent: Lent) -> None:
    (lent.root / "f").write_bytes("grün\r\n".encode("latin-1"))

    assert (await lent.client.read_file(ReadFileRequest(path="f", encoding="latin-1"))).content == "grün\n"
    assert (await lent.client.read_file(ReadFileRequest(path="f", errors="ignore"))).content == "grn\n"
    with pytest.raises(exceptions.SwerexException, match="decode"):  # the client cannot make that exception
        await lent.client.read_file(ReadFileRequest(path="f"))
    with pytest.raises(LookupError):
        await lent.client.read_file(ReadFileRequest(path="f", encoding="klingon"))


async def test_a_file_that_is_not_there_is_a_missing_file(lent: Lent) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        await lent.client.read_file(ReadFileRequest(path="nowhere"))
    with pytest.raises(IsADirectoryError):
        await lent.client.read_file(ReadFileRequest(path="."))


async def test_a_file_is_uploaded_byte_for_byte(lent: Lent, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40 + b"\r\n--boundary\r\n\r\n--"
    (tmp_path / "source").write_bytes(content)

    await lent.client.upload(UploadRequest(source_path=str(tmp_path / "source"), target_path="to/target"))

    assert (lent.root / "to" / "target").read_bytes() == content


async def test_a_directory_is_uploaded_with_what_is_in_it(lent: Lent, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "empty").mkdir(parents=True)
    (source / "deep" / "x").write_bytes(b"\0\r\n")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)

    await lent.client.upload(UploadRequest(source_path=str(source), target_path="target"))

    target = lent.root / "target"
    assert (target / "deep" / "x").read_bytes() == b"\0\r\n"
    assert (target / "deep" / "empty").is_dir()
    assert (target / "run.sh").stat().st_mode & 0o777 == 0o755


async def test_nothing_of_an_archive_lies_outside_its_target(lent: Lent, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("../up", "1")
        archive.writestr("/root/x", "2")

    assert await uploaded(lent, (tmp_path / "a.zip").read_bytes()) == 200
    assert sorted(str(path.relative_to(lent.root)) for path in lent.root.rglob("*") if path.is_file()) == [
        "target/root/x",
        "target/up",
    ]


async def test_an_archive_that_is_none_is_raised(lent: Lent) -> None:
    assert await uploaded(lent, b"no zip") == 511
    assert lent.node.granted == []


async def test_more_than_a_body_may_hold_is_refused(lent: Lent) -> None:
    assert await uploaded(lent, base64.b64encode(b"x" * LIMIT)) == 413


@pytest.mark.parametrize("field", ["file", "target_path"])
async def test_a_form_that_lacks_a_field_is_refused(lent: Lent, field: str) -> None:
    assert await uploaded(lent, b"x", leave_out=field) == 422


async def uploaded(lent: Lent, content: bytes, *, leave_out: str = "") -> int:
    """Upload an archive by hand; the status."""
    form = aiohttp.FormData()
    form.add_field("unzip", "true", content_type="text/plain")
    if leave_out != "file":
        form.add_field("file", content, filename="a.zip", content_type="application/zip")
    if leave_out != "target_path":
        form.add_field("target_path", "target")
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{lent.url}/v1/trajectories/{lent.trajectory}/swerex/upload", data=form) as reply,
    ):
        return reply.status
