"""Weight of a private directory whose program works against being weighed. As root nothing is closed: see
`test_as_other_users`.
"""

from pathlib import Path

import pytest

from services.cpu_manager.sandbox import disk_usage


def test_directories_closed_during_the_walk_are_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    deepest = home / "a" / "b"
    deepest.mkdir(parents=True)
    (deepest / "file").write_bytes(bytes(10_000))
    entries = disk_usage._entries_usage

    def close_what_was_read(folder: int, place: str, places: list[str], enough: int) -> int:
        found = entries(folder, place, places, enough)
        (home / place).chmod(0)
        return found

    monkeypatch.setattr(disk_usage, "_entries_usage", close_what_was_read)
    assert disk_usage.disk_usage(str(home), 1 << 20) == 2 * 4096 + 12_288
    home.chmod(0o700)


def test_a_directory_that_may_be_listed_and_not_searched_is_weighed(tmp_path: Path) -> None:
    listed = tmp_path / "home" / "listed"
    listed.mkdir(parents=True)
    (listed / "file").write_bytes(bytes(10_000))
    listed.chmod(0o444)
    assert disk_usage.disk_usage(str(tmp_path / "home"), 1 << 20) == 4096 + 12_288
