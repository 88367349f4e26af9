"""The files of control groups, version 2, as plain files: writes before a job and reads after it.

Where a real delegated subtree is at hand every other test of this folder runs on it as well.
"""

from pathlib import Path

import pytest

from services.cpu_manager.sandbox.walls import cgroups
from services.cpu_manager.sandbox.walls.cgroup_v1 import GroupV1
from services.cpu_manager.sandbox.walls.cgroup_v2 import GroupV2


@pytest.fixture
def group(tmp_path: Path) -> GroupV2:
    directory = tmp_path / "slot-0"
    directory.mkdir()
    for name, text in {
        "cgroup.procs": "",
        "cgroup.kill": "",
        "memory.swap.max": "max",
        "memory.max": "max",
        "memory.current": "1000",
        "memory.reclaim": "",
        "memory.peak": "0",
        "memory.events": "low 0\noom 3\noom_kill 2\n",
        "pids.max": "max",
        "cpu.stat": "usage_usec 5000000\nuser_usec 4000000\n",
    }.items():
        (directory / name).write_text(text)
    return GroupV2.make(tmp_path, "slot-0")


def test_limits_are_written_and_swap_is_disabled(group: GroupV2) -> None:
    group.set_limits(123456, 17)
    assert (group.directory / "memory.max").read_text() == "123456"
    assert (group.directory / "pids.max").read_text().startswith("17")
    assert (group.directory / "memory.swap.max").read_text().startswith("0")


def test_counts_are_reset_for_each_job(group: GroupV2) -> None:
    group.set_limits(123456, 17)
    assert (group.cpu_s(), group.out_of_memory()) == (0.0, False)
    (group.directory / "cpu.stat").write_text("usage_usec 5250000\n")
    (group.directory / "memory.events").write_text("oom_kill 3\n")
    assert (group.cpu_s(), group.out_of_memory()) == (0.25, True)


def test_memory_of_an_earlier_job_is_reclaimed(group: GroupV2) -> None:
    (group.directory / "memory.current").write_text(str(100 << 20))
    group.set_limits(1 << 30, 17)
    assert int((group.directory / "memory.reclaim").read_text()) >= 100 << 20


def test_killing_writes_one_word(group: GroupV2) -> None:
    group.kill()
    assert (group.directory / "cgroup.kill").read_text() == "1"


def test_version_1_never_sets_memory_above_memory_and_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "cpuacct.usage", "pids.max"):
        (tmp_path / name).write_text("0")
    (tmp_path / "memory.oom_control").write_text("oom_kill 0\n")
    written: list[tuple[str, int]] = []
    monkeypatch.setattr(cgroups.Files, "write", lambda _files, name, text: written.append((name, int(text))))
    files = cgroups.Files(tmp_path)
    group = GroupV1((tmp_path,), files, files, files, _swap=True)
    memory, both = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
    orders = []
    for limit in (200, 300, 100):
        written.clear()
        group.set_limits(limit, 5)
        orders.append([name for name, _ in written if name in {memory, both}])
    # From no limit and downwards: memory first. Upwards: the sum first.
    assert orders == [[memory, both], [both, memory], [memory, both]]


def test_a_sweep_removes_only_groups_of_the_dead_manager(tmp_path: Path) -> None:
    other = tmp_path / "treadle-dead"
    other.mkdir()
    cgroups.sweep("dead", [other, Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/treadle-alive")])
    assert other.is_dir()
