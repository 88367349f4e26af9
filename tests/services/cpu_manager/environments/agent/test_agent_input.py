"""Input that must not end an agent: many connections, meaningless text; and its reading of times and modes."""

import base64
import io
import tarfile
from pathlib import Path

import pytest

from tests.services.cpu_manager.environments.agent.running import connected, do


@pytest.mark.parametrize("number", [3, 6, 7, 8])
async def test_without_any_shell_the_line_fails_whatever_the_connection_is_called(program: Path, number: int) -> None:
    async with connected(program, path="/nowhere", number=number) as agent:
        for _ in range(2):
            assert (await do(agent, "bash", line="true")).output == {"error": "no shell: No such file or directory"}
        assert (await do(agent, "exec", argv=["/bin/true"])).passed


@pytest.mark.parametrize("number", [6, 7])
async def test_sh_takes_no_descriptor_of_the_connection(program: Path, tmp_path: Path, number: int) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    async with connected(program, path=str(tmp_path), number=number) as agent:
        assert (await do(agent, "bash", line="word=kept")).passed
        assert (await do(agent, "bash", line="echo $word", session="two")).output["output"] == "\n"
        assert (await do(agent, "bash", line="echo $word")).output["output"] == "kept\n"


async def test_text_that_no_program_can_be_given_fails_and_ends_nothing(program: Path) -> None:
    """The proxy rejects such text. If it arrives nevertheless, it must not end the environment."""
    async with connected(program) as agent:
        with pytest.raises(ValueError, match="null"):
            await agent.settle("a\0b", {}, 20)
        await agent.settle("", {"A": "x\0y"}, 20)
        assert "null" in (await do(agent, "bash", line="true")).output["error"]
        assert "null" in (await do(agent, "exec", argv=["true"])).output["error"]
        await agent.settle("", {}, 20)
        assert "No such directory" in (await do(agent, "exec", argv=["true"], cwd="a\0b")).output["error"]
        assert (await do(agent, "bash", line="echo well")).output["output"] == "well\n"


async def test_files_without_a_time_in_the_archive_get_the_time_of_unpacking(program: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, mtime in (("new", 0), ("old", 1_000_000_000)):
            info = tarfile.TarInfo(name)
            info.mtime = mtime
            archive.addfile(info)
    async with connected(program) as agent:
        await do(agent, "bash", line=": > before")
        await do(agent, "upload", path=".", archive=base64.b64encode(out.getvalue()).decode())
        line = "test ! new -ot before && stat -c %Y old"
        assert (await do(agent, "bash", line=line)).output["output"] == "1000000000\n"


async def test_a_file_that_is_written_keeps_its_mode_and_links_lead_to_it(program: Path) -> None:
    async with connected(program) as agent:
        line = "echo old > run; chmod 751 run; ln -s run link; ln run other; mkfifo pipe; umask 077"
        await do(agent, "bash", line=line)
        assert (await do(agent, "write", path="link", content="new\n")).passed
        seen = await do(agent, "bash", line="stat -c '%a %h' run; readlink link; cat run other")
        assert seen.output["output"] == "751 1\nrun\nnew\nold\n"
        await do(agent, "write", path="run", content="", mode=0o600)
        await do(agent, "write", path="fresh", content="")
        assert (await do(agent, "bash", line="stat -c %a run fresh")).output["output"] == "600\n644\n"
        assert (await do(agent, "write", path="pipe", content="")).output == {"error": "Not a file to replace: pipe"}
