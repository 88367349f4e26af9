"""The agent as one file, run by this Python without walls, and the channel with malformed replies."""

import ast
import asyncio
import json
import socket
import struct
from pathlib import Path

import pytest

from services.cpu_manager.environments import agent as package
from services.cpu_manager.environments.agent import wire
from services.cpu_manager.environments.agent.capture import OutputBuffer
from services.cpu_manager.environments.channel import AgentChannel, Broken
from services.cpu_manager.kinds import EnvBash, EnvExec
from tests.services.cpu_manager.environments.agent.running import connected, do, running
from tests.services.cpu_manager.environments.local.acting import found, until_found

_PACKAGE = Path(package.__file__).parent


@pytest.mark.parametrize("module", sorted(_PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_a_module_is_python_3_6(module: Path) -> None:
    tree = ast.parse(module.read_text(encoding="utf-8"), feature_version=(3, 6))
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            assert node.value.id not in {"list", "dict", "tuple", "set", "Callable", "Iterator"} or _unread(tree, node)
        assert not (isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").startswith("services"))


def _unread(tree: ast.Module, node: ast.Subscript) -> bool:
    """An annotation inside a function: no Python reads it."""
    within = [one for one in ast.walk(tree) if isinstance(one, ast.AnnAssign) and node in ast.walk(one.annotation)]
    return bool(within)


async def test_each_line_is_reported_whatever_is_wrong_with_it(program: Path) -> None:
    async with connected(program) as agent:
        for line, code, sent in (
            ("echo 'open", 2, "unexpected EOF"),
            ("if", 2, "syntax error"),
            ("cat <<END\nhere", 0, "here\n"),
            ("nosuch", 127, "bash: nosuch: command not found\n"),
            ("break; return 5", 5, ""),
            ("echo $((1/0)); echo on", 1, "division by 0"),
            ("read line; echo [$line]", 0, "[]\n"),
            ("(exit 9)", 9, ""),
            ("echo $?", 0, "9\n"),
        ):
            end = await do(agent, "bash", line=line)
            assert (end.output["exit_code"], end.output["session_ended"]) == (code, False), line
            assert sent in end.output["output"]
        assert "NUL" in (await do(agent, "bash", line="a\0b")).output["error"]


async def test_an_ended_session_reports_its_code_and_is_started_again(program: Path) -> None:
    async with connected(program) as agent:
        await do(agent, "bash", line="word=gone")
        ended = await do(agent, "bash", line="echo last; exit 7")
        assert (ended.output["output"], ended.output["exit_code"], ended.output["session_ended"]) == ("last\n", 7, True)
        assert (await do(agent, "bash", line="echo [$word] $GIVEN")).output["output"] == "[] it\n"
        assert (await do(agent, "bash", line="set -e; false")).output["session_ended"]


async def test_a_session_that_died_between_two_lines_is_reported_as_restarted(program: Path) -> None:
    async with connected(program) as agent:
        shell = (await do(agent, "bash", line="echo $$")).output["output"].strip()
        await do(agent, "exec", argv=["sh", "-c", f"kill -9 {shell}; while kill -0 {shell}; do :; done"])
        end = await do(agent, "bash", line="echo new")
        assert (end.output["output"], end.output["session_restarted"]) == ("new\n", True)


async def test_sessions_have_names_and_nothing_in_common(program: Path) -> None:
    async with connected(program) as agent:
        await do(agent, "bash", line="word=one; cd /usr", session="one")
        assert (await do(agent, "bash", line="echo [$word]", session="two")).output["output"] == "[]\n"
        assert (await do(agent, "bash", line="echo $word; pwd", session="one")).output["output"] == "one\n/usr\n"
        await do(agent, "bash", line="sleep 4321 &", session="one")
        assert (await do(agent, "close_session", session="one")).passed
        assert (await do(agent, "exec", argv=["pgrep", "-f", "sleep 4321"])).output["stdout"] == ""
        assert (await do(agent, "close_session", session="one")).output == {"error": "no such session: one"}


async def test_output_of_a_background_job_comes_with_the_next_line(program: Path) -> None:
    async with connected(program) as agent:
        await do(agent, "bash", line="{ sleep 0.1; echo late; } &")
        await do(agent, "exec", argv=["sleep", "0.5"])
        assert (await do(agent, "bash", line="echo now")).output["output"] == "late\nnow\n"


async def test_without_bash_sh_does_the_same(program: Path, tmp_path: Path) -> None:
    few = tmp_path / "few"
    few.mkdir()
    for name in ("sh", "sleep", "cat"):
        (few / name).symlink_to(f"/bin/{name}")
    async with connected(program, path=str(few)) as agent:
        await do(agent, "bash", line="word=kept; cd /usr; f() { echo called; }; sleep 300 &")
        end = await do(agent, "bash", line="echo $word; pwd; f; echo $0; exit 3")
        assert end.output["output"] == "kept\n/usr\ncalled\nsh\n"
        assert (end.output["exit_code"], end.output["session_ended"]) == (3, True)
        assert (await do(agent, "bash", line="echo 'open")).output["exit_code"] == 2
        assert (await do(agent, "bash", line="sleep 50", timeout_s=0.2)).ended_by == "wall-limit"
        assert (await do(agent, "bash", line="echo well")).output["output"].endswith("well\n")


async def test_without_any_shell_commands_still_run(program: Path, tmp_path: Path) -> None:
    few = tmp_path / "few"
    few.mkdir()
    (few / "true").symlink_to("/bin/true")
    async with connected(program, path=str(few)) as agent:
        assert "no shell" in (await do(agent, "bash", line="true")).output["error"]
        assert (await do(agent, "exec", argv=["true"])).passed


async def test_a_new_manager_ends_what_the_old_one_ran_and_finds_the_rest(program: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with running(program, path):
        first = AgentChannel(await _connection(path))
        await first.settle("", {}, 20)
        await do(first, "bash", line="word=kept; sleep 300 &")
        acting = asyncio.create_task(do(first, "exec", argv=["sleep", "8765"]))
        await until_found("sleep\x008765\0")
        second = AgentChannel(await _connection(path))
        for _ in range(500):
            try:
                await second.settle("", {}, 20)
            except ValueError:
                await asyncio.sleep(0.01)
            else:
                break
        with pytest.raises(Broken):
            await acting
        assert not found("sleep\x008765\0")
        assert (await do(second, "bash", line="echo $word; jobs | wc -l")).output["output"] == "kept\n1\n"
        second.close()
        first.close()


async def _connection(path: str) -> socket.socket:
    for _ in range(500):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
        except OSError:
            connection.close()
            await asyncio.sleep(0.02)
        else:
            return connection
    raise AssertionError("it does not listen")


def _frame(**changed: object) -> bytes:
    reply = {"id": 1, "ended_by": "done", "passed": True, "reason": "", "wall_s": 0.0, "output": {}, "parts": []}
    return wire.pack({**reply, **changed})


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        struct.pack("!II", 0xFFFFFFFF, 0),
        struct.pack("!II", 2, 0xFFFFFFFF),
        struct.pack("!II", 4, 0) + b"\xff{}}",
        struct.pack("!II", 2, 0) + b"{}",
        _frame(id=2),
        _frame(ended_by="cancelled"),
        _frame(ended_by="nonsense"),
        _frame(parts=[["stdout", 5]]),
        _frame(parts=[["stdout", -5], ["stderr", 5]]),
    ],
    ids=lambda sent: repr(sent[:40]),
)
async def test_malformed_replies_break_the_channel(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    agent = AgentChannel(ours)
    theirs.sendall(sent)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(Broken):
        await agent.do("env.exec", EnvExec(argv=["true"]), 5)
    agent.close()
    theirs.close()


async def test_the_channel_to_a_silent_agent_is_closed_on_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cpu_manager.environments.channel._CANCEL_S", 0.05)
    ours, theirs = socket.socketpair()
    agent = AgentChannel(ours)
    acting = asyncio.create_task(agent.do("env.bash", EnvBash(line="true"), 5))
    await asyncio.get_running_loop().run_in_executor(None, theirs.recv, 1 << 16)
    acting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acting
    assert agent.broken
    assert json.loads(theirs.recv(1 << 16)[8:]) == {"op": "cancel", "id": 1}
    theirs.close()


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_beginning_and_end_of_an_output_are_kept(limit: int, piece: int) -> None:
    sent = bytes(index % 251 for index in range(300_000 if piece == 1000 else 300))
    capture = OutputBuffer(limit)
    for at in range(0, len(sent), piece):
        capture.add(sent[at : at + piece])
    head, tail = capture.halves()
    assert len(head) + len(tail) == min(limit, len(sent))
    assert sent.startswith(head)
    assert sent.endswith(tail)
    assert capture.dropped == len(sent) - len(head) - len(tail)


_THROUGH_PROC = """python3 -c "
import glob, os
for path in glob.glob('/proc/%d/fd/*' % os.getppid()):
    try: os.write(os.open(path, os.O_WRONLY | os.O_NONBLOCK), b'0\\n')
    except OSError: pass
" ; echo kid; (exit 7)"""
_TO_EVERY = "for fd in {3..255}; do printf '%s' >&$fd; done 2>/dev/null; echo kid; (exit 7)"


@pytest.mark.parametrize(
    "line",
    [
        _TO_EVERY % "x",
        _TO_EVERY % r"0\n",
        _TO_EVERY % r"00000000000000000000000000000000 0\n",
        "( " + _TO_EVERY % r"0\n" + " )",
        _THROUGH_PROC,
    ],
    ids=["word", "code", "report", "subshell", "child"],
)
async def test_an_exit_code_is_the_shells_whatever_else_is_written_to_its_socket(program: Path, line: str) -> None:
    async with connected(program) as agent:
        for _ in range(2):
            end = await do(agent, "bash", line=line)
            assert (end.ended_by, end.output["exit_code"], end.output["session_ended"]) == ("done", 7, False), end
            assert end.output["output"].endswith("kid\n")
        assert (await do(agent, "bash", line="echo still")).output["output"] == "still\n"
