"""The same action gives the same bytes under every runtime, and every runtime keeps the same promises.

A runtime joins by a factory in `RUNTIMES`: it yields the runtime, and an image of it with bash and Python.
"""

import asyncio
import base64
import itertools
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from services.cpu_manager.environments.agent.archives import pack
from services.cpu_manager.environments.docker.runtime import DockerRuntime
from services.cpu_manager.environments.local.runtime import LocalRuntime
from services.cpu_manager.environments.protocol import ActEnd, BadEnvironment, Environment, Runtime
from services.cpu_manager.kinds import IN_ENVIRONMENTS
from services.cpu_manager.sandbox.local import LocalSandbox
from shared.messages.environments import LOCAL, EnvironmentSpec
from treadle.testing.small_image import small_image

pytestmark = pytest.mark.asyncio(loop_scope="module")

CORES = sorted(os.sched_getaffinity(0))
Made = tuple[Runtime, str]
_numbers = itertools.count()


@asynccontextmanager
async def local() -> AsyncIterator[Made]:
    sandbox = await LocalSandbox.create()
    runtime = await LocalRuntime.open(sandbox)
    yield runtime, LOCAL
    await runtime.close()
    await sandbox.close()


@asynccontextmanager
async def docker() -> AsyncIterator[Made]:
    with small_image(f"treadletest{os.getpid()}:same", python=True) as image:
        runtime = await DockerRuntime.open(f"same-{os.getpid()}")
        yield runtime, image
        await runtime.close()


RUNTIMES: dict[str, Callable[[], AbstractAsyncContextManager[Made]]] = {"local": local, "docker": docker}


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["local", pytest.param("docker", marks=pytest.mark.docker)]
)
async def made(request: pytest.FixtureRequest) -> AsyncIterator[Made]:
    if request.param == "docker":
        request.getfixturevalue("docker")
    async with RUNTIMES[request.param]() as runtime_and_image:
        yield runtime_and_image


@pytest_asyncio.fixture(loop_scope="module")
async def environment(made: Made) -> AsyncIterator[Environment]:
    runtime, image = made
    environment = await runtime.create(f"same{next(_numbers)}", _spec(image), frozenset(CORES[:1]))
    yield environment
    await environment.close()


def _spec(image: str, **more: Any) -> EnvironmentSpec:
    return EnvironmentSpec(image=image, memory_mb=256, disk_mb=256, workdir="/tmp/work", env={"GIVEN": "it"}, **more)


async def act(environment: Environment, kind: str, timeout_s: float = 20.0, **params: Any) -> ActEnd:
    name = f"env.{kind}"
    return await environment.act(
        name, msgspec.convert(params, IN_ENVIRONMENTS[name].params), frozenset(CORES[:1]), timeout_s
    )


def exec_result(code: int | None, stdout: str = "", stderr: str = "", **more: Any) -> dict[str, Any]:
    """Output of `env.exec`."""
    return {"exit_code": code, "stdout": stdout, "stderr": stderr, "stdout_dropped": 0, "stderr_dropped": 0, **more}


def bash_result(code: int | None, output: str, **more: Any) -> dict[str, Any]:
    """Output of `env.bash`."""
    usual = {"output_dropped": 0, "session_ended": False, "session_restarted": False}
    return {"exit_code": code, "output": output, **usual, **more}


Step = tuple[str, dict[str, Any], dict[str, Any]]
NOT_FOUND = {"exit_code": 127, "stdout": "", "stderr": ""}
CASES: dict[str, list[Step]] = {
    "commands": [
        ("exec", {"argv": ["sh", "-c", "pwd; echo $GIVEN $X; cat; echo bad >&2; exit 3"], "stdin": "in\n",
                  "env": {"X": "y"}}, exec_result(3, "/tmp/work\nit y\nin\n", "bad\n")),
        ("exec", {"argv": ["printf", "\\377\\000a"]}, exec_result(0, "\ufffd\0a")),
        ("exec", {"argv": ["sh", "-c", "kill -TERM $$"]}, exec_result(143)),
        ("exec", {"argv": ["nosuch"]}, {**NOT_FOUND, "error": "No such file or directory: nosuch"}),
        ("exec", {"argv": ["/tmp"]}, {**NOT_FOUND, "exit_code": 126, "error": "Permission denied: /tmp"}),
        ("exec", {"argv": ["pwd"], "cwd": "/usr"}, exec_result(0, "/usr\n")),
        ("exec", {"argv": ["pwd"], "cwd": "no"}, {**NOT_FOUND, "exit_code": 126, "error": "No such directory: no"}),
        ("exec", {"argv": ["sh", "-c", "echo begun; sleep 60"], "timeout_s": 0.5}, exec_result(None, "begun\n")),
        ("exec", {"argv": ["seq", "1", "100000"], "output_bytes": 12},
         exec_result(0, "1\n2\n3\n\n[... 588883 bytes left out ...]\n100000"[:-6] + "00000\n"[-6:],
                     stdout_dropped=588883)),
    ],
    "lines": [
        ("bash", {"line": "word=kept; cd /usr; f() { echo called; }; false"}, bash_result(1, "")),
        ("bash", {"line": "echo $? $word; f; pwd; echo $GIVEN >&2"}, bash_result(0, "1 kept\ncalled\n/usr\nit\n")),
        ("bash", {"line": "echo 'open"}, bash_result(
            2, "bash: /dev/fd/230: line 1: unexpected EOF while looking for matching `''\n")),
        ("bash", {"line": "nosuch; echo $0 $-"}, bash_result(0, "bash: nosuch: command not found\nbash hiBs\n")),
        ("bash", {"line": "sleep 300 & jobs"}, bash_result(0, "[1]+  Running                 sleep 300 &\n")),
        ("bash", {"line": "sleep 60; echo never", "timeout_s": 0.5}, bash_result(None, "\n")),
        ("bash", {"line": "echo $word; jobs"}, bash_result(0, "kept\n[1]+  Running                 sleep 300 &\n")),
        ("bash", {"line": "trap '' INT; while :; do :; done", "timeout_s": 0.5}, bash_result(
            None, "", session_restarted=True)),
        ("bash", {"line": "echo [$word]; exit 4"}, bash_result(4, "[]\n", session_ended=True)),
        ("bash", {"line": "pwd; cat"}, bash_result(0, "/tmp/work\n")),
        ("bash", {"line": "echo a; echo b >&2; echo c", "session": "two"}, bash_result(0, "a\nb\nc\n")),
        ("close_session", {"session": "two"}, {}),
        ("close_session", {"session": "two"}, {"error": "no such session: two"}),
    ],
    "files": [
        ("write", {"path": "a/b/text", "content": "häuser\n"}, {"size": 8}),
        ("read", {"path": "/tmp/work/a/b/text"}, {"size": 8, "content": "häuser\n"}),
        ("write", {"path": "a/raw", "content": base64.b64encode(b"\xff\x00").decode(), "encoding": "base64",
                   "mode": 0o755}, {"size": 2}),
        ("read", {"path": "a/raw"}, {"error": "not UTF-8: ask for base64"}),
        ("read", {"path": "a/raw", "encoding": "base64"}, {"size": 2, "content": "/wA="}),
        ("write", {"path": "a/raw", "content": "?", "encoding": "base64"}, {"error": "not base64"}),
        ("write", {"path": "a/raw", "content": "ab"}, {"size": 2}),  # keeps its mode
        ("list", {"path": "a"}, {"left_out": 0, "entries": [
            {"name": "b", "type": "directory", "size": 0, "mode": 0o755},
            {"name": "raw", "type": "file", "size": 2, "mode": 0o755}]}),
        ("list", {"path": "a", "most": 1}, {"left_out": 1, "entries": [
            {"name": "b", "type": "directory", "size": 0, "mode": 0o755}]}),
        ("read", {"path": "no"}, {"error": "No such file or directory: no"}),
        ("read", {"path": "a"}, {"error": "Not a regular file: a"}),
        ("write", {"path": "/dev/null", "content": ""}, {"error": "Not a file to replace: /dev/null"}),
        ("write", {"path": "a", "content": ""}, {"error": "Is a directory: a"}),
        ("write", {"path": "a/raw/c", "content": ""}, {"error": "Not a directory: a/raw/c"}),
        ("list", {"path": "no"}, {"error": "No such file or directory: no"}),
        ("download", {"path": "no"}, {"error": "No such file or directory: no"}),
        ("upload", {"path": "up", "archive": "AAAA"}, {
            "error": "not a tar archive: file could not be opened successfully:"}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
async def test_the_same_action_gives_the_same_bytes(environment: Environment, case: str) -> None:
    for kind, params, expected in CASES[case]:
        end = await act(environment, kind, **params)
        assert end.output == expected, (kind, params)
        late = "timeout_s" in params
        assert (end.ended_by, end.passed) == (
            ("wall-limit", None) if late else ("done", "error" not in expected and not expected.get("exit_code"))
        )


async def test_the_same_tree_is_the_same_archive(environment: Environment, tmp_path: Path) -> None:
    line = "mkdir -p d/e; echo one > d/a; ln -s a d/link; chmod 755 d; chmod 644 d/a; chmod 700 d/e"
    touch = ["touch", "-h", "-d", "@1000000000", "d/a", "d/link", "d/e", "d"]
    await act(environment, "bash", line=line)
    await act(environment, "exec", argv=touch)
    for command in (["bash", "-c", line], touch):
        await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, check=True)
    out = os.memfd_create("expected")
    pack(str(tmp_path / "d"), 1 << 20, out)
    expected = os.pread(out, 1 << 20, 0)
    os.close(out)
    taken = await act(environment, "download", path="d")
    assert taken.output == {"size": len(expected), "archive": base64.b64encode(expected).decode()}
    assert (await act(environment, "upload", path="again", archive=taken.output["archive"])).output == {"files": 2}
    seen = await act(environment, "bash", line="cd again/d && ls -A && readlink link && cat a && stat -c %a e")
    assert seen.output["output"] == "a\ne\nlink\na\none\n700\n"


async def test_state_cores_and_time_are_held_alike(environment: Environment) -> None:
    await act(environment, "bash", line="while :; do :; done & echo $! > busy")
    await asyncio.sleep(0.3)
    stat = await act(environment, "bash", line="read -a f < /proc/$(cat busy)/stat; echo $(( f[13] + f[14] < 20 ))")
    assert stat.output["output"] == "1\n"
    await act(environment, "exec", argv=["sleep", "0.5"])
    seen = await act(environment, "exec", argv=["grep", "Cpus_allowed_list", "/proc/self/status"])
    assert seen.output["stdout"] == f"Cpus_allowed_list:\t{CORES[0]}\n"


async def test_cancelling_leaves_the_environment_fit(environment: Environment) -> None:
    acting = asyncio.create_task(act(environment, "bash", line="echo > begun; sleep 60"))
    await asyncio.sleep(0)
    acting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acting
    assert environment.alive
    assert (await act(environment, "exec", argv=["printf", "well"])).output["stdout"] == "well"


async def test_too_much_memory_is_reported_and_survived(environment: Environment) -> None:
    eater = "kept = [b'x' * (8 << 20) for _ in range(100)]"
    end = await act(environment, "exec", argv=["python3", "-c", eater])
    assert (end.ended_by, end.passed) == ("done", False)
    after = await act(environment, "exec", argv=["printf", "well"])
    assert after.output.get("stdout") == "well", (end, after)


async def test_a_set_up_line_that_fails_is_the_trainers_error(made: Made) -> None:
    runtime, image = made
    with pytest.raises(BadEnvironment, match="said why"):
        await runtime.create("bad", _spec(image, setup=["true", "echo said why; exit 3"]), frozenset(CORES[:1]))


async def test_without_a_shell_the_line_fails_and_the_environment_continues(made: Made) -> None:
    runtime, image = made
    spec = EnvironmentSpec(image=image, memory_mb=64, env={"PATH": "/nowhere"})
    environment = await runtime.create("shellless", spec, frozenset(CORES[:1]))
    for _ in range(2):
        assert (await act(environment, "bash", line="true")).output == {"error": "no shell: No such file or directory"}
    assert (await act(environment, "exec", argv=["/bin/sh", "-c", "exit 3"])).output == exec_result(3)
    await environment.close()


async def test_a_closed_environment_acts_no_more(made: Made) -> None:
    runtime, image = made
    environment = await runtime.create("closed", _spec(image), frozenset(CORES[:1]))
    await environment.close()
    assert not environment.alive
    assert (await act(environment, "exec", argv=["true"])).ended_by == "lost"
    await environment.close()
