"""Free space: measured on real file systems, against a reserve."""

from __future__ import annotations

import os
from pathlib import Path

from services.proxy.records.disk import StoreDisk, fullest, store_paths


def test_the_setting_names_folders_as_path_does() -> None:
    assert store_paths("") == ()
    assert store_paths(f"/a{os.pathsep}/b") == (Path("/a"), Path("/b"))


def test_a_disk_is_reported_as_by_the_system(tmp_path: Path) -> None:
    space = fullest([tmp_path])
    assert space is not None
    known = os.statvfs(tmp_path)
    assert space.total_bytes == known.f_blocks * known.f_frsize
    assert 0 <= space.free_bytes <= space.total_bytes
    assert 0 <= space.used_share <= 1


def test_of_several_the_one_with_the_least_room_counts(tmp_path: Path) -> None:
    nothing_to_write = Path("/proc")
    for paths in ([tmp_path, nothing_to_write], [nothing_to_write, tmp_path]):
        found = fullest(paths)
        assert found is not None
        assert found.path == nothing_to_write
        assert found.used_share == 1


def test_the_reserve_grows_with_the_data_set(tmp_path: Path) -> None:
    disk = StoreDisk([tmp_path], reserve_bytes=0)
    disk.measure()
    assert disk.space is not None
    assert disk.shortage() is None
    disk.data_set_bytes = disk.space.free_bytes + 1
    shortage = disk.shortage()
    assert shortage is not None
    assert str(tmp_path) in shortage


def test_an_unmeasurable_disk_rejects_nothing(tmp_path: Path) -> None:
    for paths in ([], [tmp_path / "gone"]):
        disk = StoreDisk(paths, reserve_bytes=1 << 60)
        disk.measure()
        assert disk.space is None
        assert disk.shortage() is None
