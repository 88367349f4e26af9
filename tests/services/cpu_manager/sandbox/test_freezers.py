"""Freezers: version 1 on this machine where root has it, version 2 as plain files."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from services.cpu_manager.sandbox.instance import Instance, sweep
from services.cpu_manager.sandbox.walls.cgroup_v1 import HierarchyV1
from services.cpu_manager.sandbox.walls.cgroup_v2 import GroupV2
from services.cpu_manager.sandbox.walls.freezers import FreezersV1, FreezersV2


def test_version_2_freezes_by_the_files_of_the_group(tmp_path: Path) -> None:
    directory = tmp_path / "slot-0"
    directory.mkdir()
    for name, text in {
        "cgroup.procs": "",
        "cgroup.freeze": "0",
        "cgroup.events": "populated 1\nfrozen 0\n",
        "cgroup.threads": "12\n34\n",
    }.items():
        (directory / name).write_text(text)
    freezer = FreezersV2().of(GroupV2.make(tmp_path, "slot-0"))
    assert (freezer.joining, freezer.thawing, freezer.threads()) == ((), -1, [12, 34])
    freezer.freeze()
    assert (directory / "cgroup.freeze").read_text() == "1"
    assert not freezer.frozen()
    (directory / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert freezer.frozen()
    freezer.thaw()
    assert (directory / "cgroup.freeze").read_text() == "0"
    freezer.close()


@pytest.fixture
def busy() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sh", "-c", "while :; do :; done"])


def test_a_sweep_ends_frozen_processes_of_a_dead_manager(tmp_path: Path, busy: subprocess.Popen[bytes]) -> None:
    instance = Instance(tmp_path)
    try:
        hierarchy, freezers = HierarchyV1.make_for(instance.name), FreezersV1.make_for(instance.name)
    except OSError as error:
        busy.kill()
        busy.wait()
        pytest.skip(f"no control groups of version 1 to write here: {error}")
    group = hierarchy.make("slot-0")
    freezer = freezers.of(group)
    for joining in (*group.joining, *freezer.joining):
        os.write(joining, str(busy.pid).encode())
    freezer.freeze()
    while not freezer.frozen():
        os.sched_yield()
    assert freezer.threads() == [busy.pid]
    instance.record_groups((*freezers.directories, *hierarchy.directories))
    freezer.close()
    os.close(instance._lock)  # like a dead manager
    assert sweep(tmp_path) == [instance.name]
    assert busy.wait(10) == -signal.SIGKILL
    assert not any(directory.exists() for directory in (*freezers.directories, *hierarchy.directories))
