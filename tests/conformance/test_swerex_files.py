"""The published `swe-rex` client, unmodified, against a trajectory: commands without a shell, and files."""

from __future__ import annotations

import base64
import io
import os
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from swerex import exceptions
from swerex.runtime.abstract import Command, ReadFileRequest, UploadRequest, WriteFileRequest

from tests.conformance.swerex_server import LIMIT, SwerexTrajectory, serving_swerex


@pytest.fixture
async def remote(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SwerexTrajectory]:
    async with serving_swerex(redis_url, tmp_path_factory.mktemp("environment")) as remote:
        yield remote


# ---- commands ------------------------------------------------------------------------------------------------------


async def test_a_command_of_arguments_runs_without_a_shell(remote: SwerexTrajectory) -> None:
    done = await remote.client.execute(Command(command=["printf", "%s", "$HOME; x"]))

    assert (done.stdout, done.stderr, done.exit_code) == ("$HOME; x", "", 0)


async def test_a_command_of_text_runs_in_one_where_it_shall(remote: SwerexTrajectory) -> None:
    (remote.root / "sub").mkdir()

    done = await remote.client.execute(Command(command="pwd; echo err >&2; exit 4", shell=True, cwd="sub"))

    assert (done.stdout.endswith("/sub\n"), done.stderr, done.exit_code) == (True, "err\n", 4)


async def test_streams_may_be_one(remote: SwerexTrajectory) -> None:
    done = await remote.client.execute(Command(command="echo a; echo b >&2", shell=True, merge_output_streams=True))

    assert (done.stdout, done.stderr) == ("a\nb\n", "")


async def test_an_environment_given_is_the_whole_environment(remote: SwerexTrajectory) -> None:
    done = await remote.client.execute(Command(command=["env"], env={"A": "1", "B": "two words"}))

    assert sorted(done.stdout.splitlines()) == ["A=1", "B=two words"]


async def test_a_checked_command_that_fails_is_raised(remote: SwerexTrajectory) -> None:
    with pytest.raises(exceptions.NonZeroExitCodeError, match=r"mine: .*exit code 1"):
        await remote.client.execute(Command(command=["false"], check=True, error_msg="mine"))


async def test_a_program_that_is_not_there_is_a_missing_file(remote: SwerexTrajectory) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        await remote.client.execute(Command(command=["nowhere"]))


async def test_a_command_out_of_time_is_raised(remote: SwerexTrajectory) -> None:
    with pytest.raises(exceptions.CommandTimeoutError):
        await remote.client.execute(Command(command=["sleep", "60"], timeout=0.2))


# ---- files ---------------------------------------------------------------------------------------------------------


async def test_a_file_is_written_with_its_directories_and_read(remote: SwerexTrajectory) -> None:
    await remote.client.write_file(WriteFileRequest(path="a/b.txt", content="grün\n"))

    assert (remote.root / "a" / "b.txt").read_text("utf-8") == "grün\n"
    assert (await remote.client.read_file(ReadFileRequest(path="a/b.txt"))).content == "grün\n"


async def test_a_file_is_read_in_its_encoding(remote: SwerexTrajectory) -> None:
    (remote.root / "f").write_bytes("grün\r\n".encode("latin-1"))

    assert (await remote.client.read_file(ReadFileRequest(path="f", encoding="latin-1"))).content == "grün\n"
    assert (await remote.client.read_file(ReadFileRequest(path="f", errors="ignore"))).content == "grn\n"
    with pytest.raises(exceptions.SwerexException, match="decode"):  # the client cannot make that exception
        await remote.client.read_file(ReadFileRequest(path="f"))
    with pytest.raises(LookupError):
        await remote.client.read_file(ReadFileRequest(path="f", encoding="klingon"))


@pytest.mark.parametrize(
    ("asked", "raised"),
    [
        ({"encoding": "punycode"}, "LookupError"),
        ({"encoding": "IDNA"}, "LookupError"),
        ({"encoding": "base64"}, "LookupError"),
        ({"encoding": "x" * 100_000}, "LookupError"),
        ({"encoding": "a\0b"}, "ValueError"),
        ({"errors": "klingon"}, "LookupError"),
        ({"errors": "xmlcharrefreplace"}, "TypeError"),
        ({"errors": "surrogateescape"}, "ValueError"),
    ],
)
async def test_a_file_that_cannot_be_decoded_is_raised(
    remote: SwerexTrajectory, asked: dict[str, str], raised: str
) -> None:
    (remote.root / "f").write_bytes(b"a\xff")

    status, answer = await remote.post("read_file", {"path": "f", **asked}, "one")

    assert (status, answer["swerexception"]["class_path"]) == (511, f"builtins.{raised}")


async def test_a_file_that_is_not_there_is_a_missing_file(remote: SwerexTrajectory) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        await remote.client.read_file(ReadFileRequest(path="nowhere"))
    with pytest.raises(IsADirectoryError):
        await remote.client.read_file(ReadFileRequest(path="."))


async def test_a_file_is_uploaded_byte_for_byte(remote: SwerexTrajectory, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40 + b"\r\n--boundary\r\n\r\n--"
    (tmp_path / "source").write_bytes(content)

    await remote.client.upload(UploadRequest(source_path=str(tmp_path / "source"), target_path="to/target"))

    assert (remote.root / "to" / "target").read_bytes() == content


async def test_a_directory_is_uploaded_with_what_is_in_it(remote: SwerexTrajectory, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "empty").mkdir(parents=True)
    (source / "deep" / "x").write_bytes(b"\0\r\n")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)

    await remote.client.upload(UploadRequest(source_path=str(source), target_path="target"))

    target = remote.root / "target"
    assert (target / "deep" / "x").read_bytes() == b"\0\r\n"
    assert (target / "deep" / "empty").is_dir()
    assert (target / "run.sh").stat().st_mode & 0o777 == 0o755


async def test_nothing_of_an_archive_lies_outside_its_target(remote: SwerexTrajectory, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("../up", "1")
        archive.writestr("/root/x", "2")

    assert await uploaded(remote, (tmp_path / "a.zip").read_bytes()) == 200
    assert sorted(str(path.relative_to(remote.root)) for path in remote.root.rglob("*") if path.is_file()) == [
        "target/root/x",
        "target/up",
    ]


async def test_an_archive_that_is_none_is_raised(remote: SwerexTrajectory) -> None:
    assert await uploaded(remote, b"no zip") == 511
    assert remote.node.granted == []


async def test_an_archive_that_grows_past_a_body_is_raised(remote: SwerexTrajectory) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a", os.urandom(LIMIT // 4) * 4)
    assert len(out.getvalue()) < LIMIT // 2

    assert await uploaded(remote, out.getvalue()) == 511
    assert remote.node.granted == []


async def test_an_upload_that_is_made_again_is_not_done_again(remote: SwerexTrajectory) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a", "1")

    assert await uploaded(remote, out.getvalue(), request_id="one") == 200
    assert await uploaded(remote, out.getvalue(), request_id="one") == 200
    assert len(remote.node.granted) == 1


async def test_more_than_a_body_may_hold_is_refused(remote: SwerexTrajectory) -> None:
    assert await uploaded(remote, base64.b64encode(b"x" * LIMIT)) == 413


@pytest.mark.parametrize("field", ["file", "target_path"])
async def test_a_form_that_lacks_a_field_is_refused(remote: SwerexTrajectory, field: str) -> None:
    assert await uploaded(remote, b"x", leave_out=field) == 422


async def uploaded(remote: SwerexTrajectory, content: bytes, *, leave_out: str = "", request_id: str = "it") -> int:
    """Upload an archive without the client; return the status."""
    form = aiohttp.FormData()
    form.add_field("unzip", "true", content_type="text/plain")
    if leave_out != "file":
        form.add_field("file", content, filename="a.zip", content_type="application/zip")
    if leave_out != "target_path":
        form.add_field("target_path", "target")
    async with (
        aiohttp.ClientSession(headers={"X-Request-ID": request_id}) as http,
        http.post(f"{remote.url}/v1/trajectories/{remote.trajectory}/swerex/upload", data=form) as reply,
    ):
        return reply.status
