"""Programs in a container that attack resources of others. As root of the image, with both kinds of handle."""

import asyncio
import os

import pytest

from services.cpu_manager.environments.docker.direct_handle import DirectHandle
from services.cpu_manager.environments.docker.runtime import DockerRuntime
from tests.services.cpu_manager.environments.docker.containers import CORE, ActingEnvironment

past_the_engine = pytest.mark.parametrize("runtime", ["direct"], indirect=True, scope="module")
"""Through the engine the relay runs inside, and connects to whichever process listens there."""

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]


async def test_it_has_no_rights_and_cannot_get_any(acting: ActingEnvironment) -> None:
    status = await acting.output_of("cat /proc/self/status")
    output = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {output[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (output["NoNewPrivs"], output["Seccomp"]) == ("1", "2")


@pytest.mark.parametrize(
    "line",
    [
        "mount -t tmpfs none /tmp",
        "mount -o remount,rw /run/treadle/agent",
        "unshare --mount true",
        "unshare --user true",
        "mknod /tmp/disk b 8 0",
        "chown nobody /tmp",
        "hostname another",
        "nice -n -5 true 2>&1 | grep -q . && false",
        "echo THAWED > /sys/fs/cgroup/freezer/freezer.state",
        "echo 0-1 > /sys/fs/cgroup/cpuset/cpuset.cpus",
        "echo 1000000000 > /sys/fs/cgroup/memory/memory.limit_in_bytes",
        "mkdir /sys/fs/cgroup/freezer/out",
        "echo 1 > /proc/sys/kernel/panic",
        "echo b > /proc/sysrq-trigger",
        "head -c 1 /proc/kcore",
        "ls /proc/1/root",
        "cat /proc/1/environ",
        "cat /proc/1/mem",
        "ls /dev/sda /dev/vda /dev/kmsg",
        "touch /run/treadle/agent/program.pyc",
        "rm /run/treadle/agent/program.pyc",
    ],
)
async def test_forbidden_lines_fail(acting: ActingEnvironment, line: str) -> None:
    end = await acting.bash(line)
    assert (end.ended_by, end.passed) == ("done", False), end
    assert acting.environment.alive


async def test_the_engines_socket_and_other_containers_are_not_there(acting: ActingEnvironment) -> None:
    assert await acting.output_of("ls /var/run/docker.sock /run/docker.sock 2>/dev/null || true") == ""
    processes = await acting.output_of("ps -e -o args")
    assert "dockerd" not in processes
    assert "pytest" not in processes


async def test_it_has_no_network(runtime: DockerRuntime, tools_image: str) -> None:
    source = """
import socket, os
print(sorted(os.listdir('/sys/class/net')))
for address in (('172.17.0.1', 80), ('10.0.0.1', 53), ('169.254.169.254', 80)):
    try: socket.create_connection(address, timeout=2); print('reached', address)
    except OSError: pass
"""
    async with ActingEnvironment.making(runtime, tools_image) as made:
        end = await made.exec("python3", "-c", source)
    assert end.output["stdout"] == "['lo']\n", end


async def test_it_cannot_connect_to_its_agent_instead_of_the_manager(runtime: DockerRuntime, tools_image: str) -> None:
    source = """
import json, socket, struct
way = socket.socket(socket.AF_UNIX)
way.settimeout(5)
way.connect('/run/treadle/sockets/agent')
text = json.dumps({'id': 1, 'op': 'ping'}).encode()
try:
    way.sendall(struct.pack('!II', len(text), 0) + text)
    print(way.recv(100))
except OSError as error:
    print(b'')
"""
    async with ActingEnvironment.making(runtime, tools_image) as made:
        end = await made.exec("python3", "-c", source)
        assert end.output["stdout"] == "b''\n", end
        assert await made.output_of("echo on") == "on"


async def test_it_cannot_end_or_stop_its_agent(acting: ActingEnvironment) -> None:
    for signal in ("KILL", "STOP", "TERM", "INT", "HUP", "SEGV", "CHLD"):
        await acting.bash(f"kill -{signal} 1")
    assert await acting.output_of("echo on") == "on"


@past_the_engine
async def test_a_socket_put_in_the_agents_place_is_not_taken_for_it(runtime: DockerRuntime, tools_image: str) -> None:
    source = """
import os, socket, time
os.unlink('/run/treadle/sockets/agent')
way = socket.socket(socket.AF_UNIX)
way.bind('/run/treadle/sockets/agent')
way.listen()
if os.fork() == 0:
    os.setsid()
    time.sleep(300)
"""
    async with ActingEnvironment.making(runtime, tools_image) as made:
        assert (await made.exec("python3", "-c", source)).passed
        assert await made.output_of("echo on") == "on"
        with pytest.raises(OSError, match="in the place of"):
            await made.environment.handle.connect()


@past_the_engine
async def test_a_link_in_the_agents_place_leads_nowhere(runtime: DockerRuntime, tools_image: str) -> None:
    async with ActingEnvironment.making(runtime, tools_image) as made:
        await made.output_of("ln -sf /var/run/docker.sock /run/treadle/sockets/agent")
        with pytest.raises(OSError, match="openat2"):
            await made.environment.handle.connect()


async def test_processes_beyond_its_number_are_refused(runtime: DockerRuntime, bare_image: str) -> None:
    async with ActingEnvironment.making(runtime, bare_image, pids=16) as made:
        end = await made.exec("sh", "-c", "for i in $(seq 50); do sleep 300 & done")
        assert "Cannot fork" in end.output["stderr"], end
        counted = await made.exec("sh", "-c", "set -- /proc/[0-9]*; echo $#")
        # The agent has four of its own; with direct handles three of them are free for programs.
        assert int(counted.output["stdout"] or 0) <= 16 + 4, counted
        assert made.environment.alive


async def test_a_fork_bomb_ends_with_its_time(runtime: DockerRuntime, bare_image: str) -> None:
    async with ActingEnvironment.making(runtime, bare_image, pids=64) as made:
        end = await made.exec("bash", "-c", ":(){ :|:& };:; wait", timeout_s=2)
        assert end.ended_by in {"done", "wall-limit", "lost"}
        if made.environment.alive:
            assert await made.output_of("echo on") == "on"


async def test_memory_beyond_its_limit_ends_what_asks_for_it_and_nothing_else(
    runtime: DockerRuntime, tools_image: str
) -> None:
    async with ActingEnvironment.making(runtime, tools_image, memory_mb=64) as made:
        await made.output_of("kept=1")
        end = await made.exec("python3", "-c", "b'x' * (200 << 20)")
        assert (end.passed, end.output["exit_code"]) == (False, 137)
        if isinstance(made.environment.handle, DirectHandle):
            assert end.output["memory_exceeded"]
        assert await made.output_of("echo $kept") == "1"


async def test_a_file_beyond_the_disk_limit_is_refused(runtime: DockerRuntime, bare_image: str) -> None:
    async with ActingEnvironment.making(runtime, bare_image, disk_mb=4) as made:
        end = await made.bash("dd if=/dev/zero of=/tmp/large bs=1M count=8")
        assert not end.passed
        assert int(await made.output_of("stat -c %s /tmp/large")) <= 4 << 20


async def test_processes_beyond_its_grant_cannot_use_other_cores(runtime: DockerRuntime, bare_image: str) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is only one core here")
    every = ",".join(map(str, os.sched_getaffinity(0)))
    async with ActingEnvironment.making(runtime, bare_image) as made:
        output = await made.output_of(
            f"taskset -p -c {every} $$ >/dev/null 2>&1; for i in 1 2 3; do taskset -c {every} "
            "grep Cpus_allowed_list /proc/self/status; done 2>&1 | sort -u"
        )
    allowed = ",".join(map(str, CORE))
    assert {line.split()[-1] for line in output.splitlines() if "Cpus_allowed" in line} <= {allowed}


async def test_endless_output_neither_blocks_nor_grows_us(acting: ActingEnvironment) -> None:
    end = await acting.exec("yes", timeout_s=1)
    assert end.ended_by == "wall-limit"
    assert len(end.output["stdout"]) < 300 << 10
    assert end.output["stdout_dropped"] > 1 << 20


async def test_output_of_the_agent_itself_is_bounded_on_the_host(acting: ActingEnvironment) -> None:
    end = await acting.bash("head -c 1M /dev/zero | tr '\\0' x > /proc/1/fd/1")
    assert not end.passed, "the agent is closed to others"


async def test_an_attack_does_not_disturb_its_neighbour(runtime: DockerRuntime, bare_image: str) -> None:
    async with (
        ActingEnvironment.making(runtime, bare_image, pids=64) as bad,
        ActingEnvironment.making(runtime, bare_image) as good,
    ):
        bomb = asyncio.create_task(bad.exec("bash", "-c", ":(){ :|:& };:; wait", timeout_s=2))
        assert [await good.output_of("echo well") for _ in range(5)] == ["well"] * 5
        await bomb


async def test_a_read_only_image_cannot_be_changed_but_its_working_directory_can(
    runtime: DockerRuntime, bare_image: str
) -> None:
    async with ActingEnvironment.making(runtime, bare_image, read_only=True, workdir="/usr/share/work") as made:
        for place in ("/", "/usr/bin", "/etc"):
            assert not (await made.bash(f"touch {place}/new")).passed
        assert await made.output_of("touch here /tmp/there && ls") == "here"
