"""A local environment keeps everything but its cores from one action to the next. With real walls, on every rung."""

import asyncio
import base64
import io
import tarfile
import time

import msgspec
import pytest

from services.cpu_manager.environments.local.runtime import CellEnvironment, LocalRuntime
from services.cpu_manager.environments.protocol import BadEnvironment, RuntimeUnavailable
from services.cpu_manager.sandbox.usage import pid_of
from shared.messages.environments import EnvironmentSpec
from tests.services.cpu_manager.environments.local.acting import (
    CORE,
    CORES,
    SMALL,
    act,
    cpu_s_of,
    found,
    in_background,
    output_of,
    until,
    until_found,
    until_gone,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_files_variables_functions_and_background_processes_stay(environment: CellEnvironment) -> None:
    await output_of(environment, "mkdir -p deep; cd deep; word=kept; f() { echo called; }; sleep 300 & echo $! > pid")
    assert await output_of(environment, "pwd; echo $word; f; kill -0 $(cat pid) && echo alive") == (
        "/tmp/deep\nkept\ncalled\nalive"
    )
    assert (await act(environment, "exec", argv=["cat", "deep/pid"])).output["stdout"].strip().isdigit()


async def test_background_processes_use_no_cpu_between_actions(environment: CellEnvironment) -> None:
    await in_background(environment, "busy-in-background")
    (busy,) = found("busy-in-background")
    before = cpu_s_of(busy)
    await asyncio.sleep(0.5)
    assert cpu_s_of(busy) == before
    await act(environment, "exec", argv=["sleep", "0.3"])
    assert cpu_s_of(busy) > before


async def test_nothing_runs_on_cores_that_were_not_granted(environment: CellEnvironment) -> None:
    if len(CORES) < 2:
        pytest.skip("one core is all there is, so there is none to stay away from")
    first, second = frozenset(CORES[:1]), frozenset(CORES[1:2])
    await output_of(
        environment, "for i in 1 2 3; do python3 -c 'while True: pass' many-$i & done; taskset -p $$", cores=first
    )
    await act(environment, "exec", argv=["sleep", "0.1"], cores=second)
    allowed = "import os; print(*{os.sched_getaffinity(int(p)).pop() for p in os.listdir('/proc') if p.isdigit()})"
    seen = await act(environment, "exec", argv=["python3", "-c", allowed], cores=second)
    assert seen.output["stdout"].split() == [str(CORES[1])]
    refused = await act(environment, "exec", argv=["taskset", "-c", str(CORES[0]), "true"], cores=second)
    assert not refused.passed
    end = await act(environment, "exec", argv=["sleep", "0.4"], cores=second)
    assert end.cpu_s < 0.8  # three busy loops had one core, not two


async def test_a_command_over_its_time_ends_with_what_it_started(environment: CellEnvironment) -> None:
    end = await act(environment, "exec", argv=["sh", "-c", "echo begun; sleep 77 & sleep 78"], timeout_s=0.3)
    assert (end.ended_by, end.passed, end.output["stdout"]) == ("wall-limit", None, "begun\n")
    assert await output_of(environment, "pgrep -c sleep || true") == "0"


async def test_a_line_over_its_time_is_interrupted_and_its_shell_continues(environment: CellEnvironment) -> None:
    await output_of(environment, "word=kept; cd /usr; sleep 300 &")
    end = await act(environment, "bash", line="f() { sleep 50; echo no; }; f; echo never", timeout_s=0.3)
    assert (end.ended_by, end.output["session_restarted"]) == ("wall-limit", False)
    assert "no" not in end.output["output"]
    assert await output_of(environment, "pwd; echo $word; pgrep -c sleep") == "/usr\nkept\n1"


async def test_a_line_that_will_not_be_interrupted_costs_its_shell(environment: CellEnvironment) -> None:
    await output_of(environment, "word=lost; sleep 300 &")
    end = await act(environment, "bash", line="trap '' INT; while :; do :; done", timeout_s=0.3)
    assert (end.ended_by, end.output["session_restarted"]) == ("wall-limit", True)
    assert await output_of(environment, "echo [$word]; pgrep -c sleep") == "[]\n1"


async def test_a_flood_of_output_is_counted_and_its_ends_are_kept(environment: CellEnvironment) -> None:
    script = "import sys; sys.stdout.write('a' * 10 + 'm' * 50_000_000 + 'z' * 10)"
    end = await act(environment, "exec", argv=["python3", "-c", script], output_bytes=20)
    assert end.output["stdout"] == "a" * 10 + "\n[... 50000000 bytes left out ...]\n" + "z" * 10
    assert end.output["stdout_dropped"] == 50_000_000


async def test_background_output_blocks_no_line(environment: CellEnvironment) -> None:
    await output_of(environment, "yes & true")
    for _ in range(3):
        assert (await act(environment, "exec", argv=["sleep", "0.1"])).passed
    end = await act(environment, "bash", line="echo here", output_bytes=100)
    assert end.passed
    assert end.output["output_dropped"] > 0


async def test_any_bytes_pass_through_files_and_archives(environment: CellEnvironment) -> None:
    content = base64.b64encode(bytes(range(256)) * 4096).decode()
    written = await act(environment, "write", path="in/a.bin", content=content, encoding="base64", mode=0o600)
    assert written.output == {"size": 1 << 20}
    assert (await act(environment, "read", path="in/a.bin", encoding="base64")).output["content"] == content
    assert (await act(environment, "read", path="in/a.bin")).output == {"error": "not UTF-8: ask for base64"}
    taken = await act(environment, "download", path="in")
    assert (await act(environment, "upload", path="out", archive=taken.output["archive"])).output == {"files": 1}
    assert await output_of(environment, "cmp in/a.bin out/in/a.bin && stat -c %a out/in/a.bin") == "600"


async def test_an_archive_that_leads_out_is_refused(environment: CellEnvironment) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../escaped"), io.BytesIO())
    sent = base64.b64encode(packed.getvalue()).decode()
    end = await act(environment, "upload", path="/tmp/inner", archive=sent)
    assert "leads out" in end.output["error"]
    assert not (await act(environment, "read", path="/tmp/escaped")).passed


async def test_cancelling_ends_what_runs_and_nothing_else(environment: CellEnvironment) -> None:
    await output_of(environment, "word=kept; sleep 300 &")
    acting = asyncio.create_task(act(environment, "bash", line="sleep 5555; echo no"))
    await until_found("\x005555\0")
    acting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acting
    assert not found("\x005555\0")
    assert environment.alive
    assert await output_of(environment, "echo $word; pgrep -c sleep") == "kept\n1"


async def test_closing_during_an_action_ends_both(runtime: LocalRuntime) -> None:
    environment = await runtime.create("closed", SMALL, CORE)
    acting = asyncio.create_task(act(environment, "exec", argv=["sleep", "6666"]))
    await until_found("\x006666\0")
    await environment.close()
    assert (await acting).ended_by == "lost"
    assert not environment.alive
    assert (await act(environment, "exec", argv=["true"])).ended_by == "lost"
    await environment.close()
    await until_gone("\x006666\0")


async def test_too_much_memory_ends_what_asks_for_it_alone(environment: CellEnvironment) -> None:
    await output_of(environment, "word=kept")
    eater = "import time; kept = [bytearray(b'x' * (8 << 20)) for _ in range(100)]; time.sleep(9)"
    end = await act(environment, "exec", argv=["python3", "-c", eater])
    assert end.ended_by == "done"
    assert not end.passed
    assert end.output.get("memory_exceeded") or "MemoryError" in end.output["stderr"]
    assert await output_of(environment, "echo $word") == "kept"


async def test_a_fork_storm_ends_with_its_line_and_is_suspended_between_actions(environment: CellEnvironment) -> None:
    storm = "import os\nwhile True:\n try: os.fork()\n except OSError: pass\n"
    await act(environment, "write", path="storm.py", content=storm)
    end = await act(environment, "bash", line="python3 storm.py storm-one", timeout_s=1.0)
    assert end.ended_by == "wall-limit"
    assert not found("storm-one")
    await output_of(environment, "python3 storm.py storm-two & true")
    for _ in range(50):
        if len(stormy := found("storm-two")) > 10:
            break
        await act(environment, "exec", argv=["sh", "-c", "read nothing"])
    before = [cpu_s_of(pid) for pid in stormy]
    await asyncio.sleep(0.3)
    assert (found("storm-two"), [cpu_s_of(pid) for pid in stormy]) == (stormy, before)
    await environment.close()
    await until_gone("storm-two")


async def test_24_environments_act_at_once(runtime: LocalRuntime) -> None:
    made = await asyncio.gather(*(runtime.create(f"many{n}", SMALL, CORE) for n in range(24)))

    async def live(number: int) -> str:
        environment, cores = made[number], frozenset({CORES[number % len(CORES)]})
        for turn in range(5):
            await output_of(environment, f"echo {number}.{turn} >> log; mine={number}", cores=cores)
        return await output_of(environment, "tr '\\n' ' ' < log; echo $mine", cores=cores)

    lived = await asyncio.gather(*(live(number) for number in range(24)))
    assert lived == [f"{n}.0 {n}.1 {n}.2 {n}.3 {n}.4 {n}" for n in range(24)]
    await asyncio.gather(*(environment.close() for environment in made))


async def test_idle_environments_cost_no_cpu(runtime: LocalRuntime) -> None:
    made = [await runtime.create(f"idle{n}", SMALL, CORE) for n in range(40)]
    for environment in made:
        await output_of(environment, "sleep 0.01 & true")
    before = time.process_time()
    agents = [pid_of(environment.handle.pidfd) for environment in made]
    usage = sum(cpu_s_of(pid) for pid in agents)
    await asyncio.sleep(1.0)
    assert sum(cpu_s_of(pid) for pid in agents) - usage < 0.005  # the end of the last one's answer
    assert time.process_time() - before < 0.02  # the manager's own: nothing polls
    await asyncio.gather(*(environment.close() for environment in made))


async def test_set_up_lines_run_once_and_their_shell_is_the_first(runtime: LocalRuntime) -> None:
    spec = msgspec.structs.replace(
        SMALL, setup=["mkdir inner && cd inner", "word=$GIVEN"], env={"GIVEN": "it"}, workdir="/tmp/work/here"
    )
    environment = await runtime.create("settled", spec, CORE)
    assert await output_of(environment, "pwd; echo $word") == "/tmp/work/here/inner\nit"
    assert (await act(environment, "exec", argv=["pwd"])).output["stdout"] == "/tmp/work/here\n"
    await environment.close()


@pytest.mark.parametrize(
    ("wrong", "output"),
    [
        (EnvironmentSpec(network=True), "no network"),
        (EnvironmentSpec(setup=["echo why >&2; false"]), "why"),
        (EnvironmentSpec(setup=["sleep 9"], setup_timeout_s=0.3), "longer than 0.3 s"),
        (EnvironmentSpec(workdir="/usr/inside"), "Read-only"),
    ],
)
async def test_an_environment_that_cannot_be_created_is_its_trainers_error(
    runtime: LocalRuntime, wrong: EnvironmentSpec, output: str
) -> None:
    with pytest.raises(BadEnvironment, match=output):
        await runtime.create("wrong", wrong, CORE)


async def test_a_cancelled_creation_leaves_nothing(runtime: LocalRuntime) -> None:
    spec = msgspec.structs.replace(SMALL, setup=["sleep 7777"])
    creating = asyncio.create_task(runtime.create("given up", spec, CORE))
    await until_found("\x007777\0")
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    await until_gone("\x007777\0")


async def test_a_zygotes_death_is_the_end_of_its_environments_and_no_more(runtime: LocalRuntime) -> None:
    environment = await runtime.create("orphan", SMALL, CORE)
    await output_of(environment, "sleep 8888 & true")
    runtime._environments[environment].zygote.kill()
    await until_gone("\x008888\0")
    await until(lambda: not environment.alive, "its end was not noticed")
    await environment.close()
    after = await runtime.create("after", SMALL, CORE)
    assert await output_of(after, "echo well") == "well"
    await after.close()


async def test_a_closed_runtime_creates_nothing(runtime: LocalRuntime) -> None:
    assert await runtime.survivors() == []
    await runtime.prepare("local")
    await runtime.close()
    with pytest.raises(RuntimeUnavailable):
        await runtime.create("late", SMALL, CORE)
