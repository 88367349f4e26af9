"""What must not end a resident: connections of any number, text without sense. And what it makes of times and modes."""

import base64
import io
import tarfile
from pathlib import Path

import pytest

from tests.services.cpu_manager.environments.resident.running import connected, do


@pytest.mark.parametrize("number", [3, 6, 7, 8])
async def test_without_any_shell_the_line_fails_whatever_the_connection_is_called(program: Path, number: int) -> None:
    async with connected(program, path="/nowhere", number=number) as resident:
        for _ in range(2):
            assert (await do(resident, "bash", line="true")).output == {"error": "no shell: No such file or directory"}
        assert (await do(resident, "exec", argv=["/bin/true"])).passed


@pytest.mark.parametrize("number", [6, 7])
async def test_sh_takes_no_descriptor_of_the_connection(program: Path, tmp_path: Path, number: int) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    async with connected(program, path=str(tmp_path), number=number) as resident:
        assert (await do(resident, "bash", line="word=kept")).passed
        assert (await do(resident, "bash", line="echo $word", session="two")).output["output"] == "\n"
        assert (await do(resident, "bash", line="echo $word")).output["output"] == "kept\n"


async def test_text_that_no_program_can_be_given_fails_and_ends_nothing(program: Path) -> None:
    """The door refuses it; what comes all the same must not cost the environment."""
    async with connected(program) as resident:
        with pytest.raises(ValueError, match="null"):
            await resident.settle("a\0b", {}, 20)
        await resident.settle("", {"A": "x\0y"}, 20)
        assert "null" in (await do(resident, "bash", line="true")).output["error"]
        assert "null" in (await do(resident, "exec", argv=["true"])).output["error"]
        await resident.settle("", {}, 20)
        assert "No such directory" in (await do(resident, "exec", argv=["true"], cwd="a\0b")).output["error"]
        assert (await do(resident, "bash", line="echo well")).output["output"] == "well\n"


async def test_what_an_archive_gives_no_time_is_as_old_as_its_unpacking(program: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, mtime in (("new", 0), ("old", 1_000_000_000)):
            info = tarfile.TarInfo(name)
            info.mtime = mtime
            archive.addfile(info)
    async with connected(program) as resident:
        await do(resident, "bash", line=": > before")
        await do(resident, "upload", path=".", archive=base64.b64encode(out.getvalue()).decode())
        line = "test ! new -ot before && stat -c %Y old"
        assert (await do(resident, "bash", line=line)).output["output"] == "1000000000\n"


async def test_a_file_that_is_written_keeps_its_mode_and_links_lead_to_it(program: Path) -> None:
    async with connected(program) as resident:
        line = "echo old > run; chmod 751 run; ln -s run link; ln run other; mkfifo pipe; umask 077"
        await do(resident, "bash", line=line)
        assert (await do(resident, "write", path="link", content="new\n")).passed
        seen = await do(resident, "bash", line="stat -c '%a %h' run; readlink link; cat run other")
        assert seen.output["output"] == "751 1\nrun\nnew\nold\n"
        await do(resident, "write", path="run", content="", mode=0o600)
        await do(resident, "write", path="fresh", content="")
        assert (await do(resident, "bash", line="stat -c %a run fresh")).output["output"] == "600\n644\n"
        assert (await do(resident, "write", path="pipe", content="")).output == {"error": "Not a file to replace: pipe"}
