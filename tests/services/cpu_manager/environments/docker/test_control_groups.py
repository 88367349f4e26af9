"""Control groups of version 2 on a recorded tree: they cannot run beside version 1, which the other tests use."""

import asyncio
import os
from pathlib import Path

import pytest

from services.cpu_manager.environments.docker import control_groups
from services.cpu_manager.environments.docker.control_groups import CgroupV2, control_groups_of, frozen

CONTAINER = "4f1c" * 16
PID = 4321

# As `systemctl` and the engine leave it on Debian 12 (Linux 6.1, cgroup v2, systemd driver).
SCOPE = f"system.slice/docker-{CONTAINER}.scope"
MOUNTINFO = "29 23 0:26 / {point} rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
FILES = {
    "cgroup.procs": f"{PID}\n4400\n",
    "cgroup.freeze": "0\n",
    "cgroup.events": "populated 1\nfrozen 0\n",
    "cpuset.cpus": "0-1\n",
    "cpu.stat": "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n",
    "memory.peak": "7340032\n",
    "memory.events": "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n",
}


class RecordedHost:
    """/proc and /sys/fs/cgroup of a host of version 2, under a folder."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.group = root / "cgroup" / SCOPE
        self.group.mkdir(parents=True)
        for name, content in FILES.items():
            (self.group / name).write_text(content)
        (self.proc / str(PID)).mkdir(parents=True)
        (self.proc / "self").mkdir()
        (self.proc / str(PID) / "cgroup").write_text(f"0::/{SCOPE}\n")
        (self.proc / "self" / "mountinfo").write_text(MOUNTINFO.format(point=root / "cgroup"))

    def content(self, name: str) -> str:
        return (self.group / name).read_text()


@pytest.fixture
def recorded(tmp_path: Path) -> RecordedHost:
    return RecordedHost(tmp_path)


def found(recorded: RecordedHost) -> CgroupV2:
    groups = control_groups_of(PID, CONTAINER, recorded.proc)
    assert isinstance(groups, CgroupV2)
    return groups


def test_version_2_is_found_from_the_containers_first_process(recorded: RecordedHost) -> None:
    groups = found(recorded)
    assert (groups.cpu_s(), groups.peak_memory_bytes(), groups.memory_kills()) == (1.5, 7340032, 2)


def test_version_2_is_given_cores_thawed_and_frozen(recorded: RecordedHost) -> None:
    groups = found(recorded)
    groups.assign({5, 2, 3})
    groups.freeze()
    assert (recorded.content("cpuset.cpus")[:5], recorded.content("cgroup.freeze")[0]) == ("2,3,5", "1")
    groups.thaw()
    assert recorded.content("cgroup.freeze")[0] == "0"


async def test_version_2_is_frozen_when_the_kernel_reports_it(recorded: RecordedHost) -> None:
    groups = found(recorded)
    freezing = asyncio.create_task(frozen(groups))
    await asyncio.sleep(0)
    assert not freezing.done()
    (recorded.group / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert await freezing


async def test_a_freeze_has_a_time_limit(recorded: RecordedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "FREEZE_S", 0.01)
    assert not await frozen(found(recorded))


def test_the_peak_of_version_2_is_forgotten_by_the_descriptor_that_reads_it(recorded: RecordedHost) -> None:
    found(recorded).reset_peak()
    assert recorded.content("memory.peak") == "0340032\n"  # a plain file keeps what the kernel would not


def test_an_old_kernel_that_cannot_reset_reports_the_peak_since_the_beginning(
    recorded: RecordedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path).name != "memory.peak"
    )  # root may write what its mode forbids
    groups = found(recorded)
    groups.reset_peak()
    assert groups.peak_memory_bytes() == 7340032


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (f"{PID}/cgroup", "0::/system.slice/ssh.service\n"),
        (f"{PID}/cgroup", f"0::/../../{SCOPE}\n"),
        ("self/mountinfo", ""),
    ],
    ids=["another's process", "another namespace", "nothing mounted"],
)
def test_groups_that_are_not_the_containers_are_left_alone(recorded: RecordedHost, path: str, content: str) -> None:
    (recorded.proc / path).write_text(content)
    assert control_groups_of(PID, CONTAINER, recorded.proc) is None


def test_a_process_that_left_its_group_meanwhile_is_nobodys(recorded: RecordedHost) -> None:
    (recorded.group / "cgroup.procs").write_text("4400\n")
    assert control_groups_of(PID, CONTAINER, recorded.proc) is None


def test_a_process_that_is_gone_has_no_groups(recorded: RecordedHost) -> None:
    assert control_groups_of(PID + 1, CONTAINER, recorded.proc) is None


def test_a_kernel_without_memory_peak_is_left_to_the_engine(recorded: RecordedHost) -> None:
    (recorded.group / "memory.peak").unlink()
    assert control_groups_of(PID, CONTAINER, recorded.proc) is None
