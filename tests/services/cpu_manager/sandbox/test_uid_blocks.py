"""Blocks of user ids: no two living managers of a host hold the same one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.cpu_manager.sandbox import uid_blocks
from services.cpu_manager.sandbox.uid_blocks import UidBlock

CLAIM = """
import sys, time
from pathlib import Path
from services.cpu_manager.sandbox.uid_blocks import UidBlock
print(UidBlock(7, Path(sys.argv[1])).number, flush=True)
time.sleep(600)
"""


def test_a_block_has_one_holder_until_it_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "users"
    first, second = UidBlock(7, folder), UidBlock(7, folder)
    assert (first.number, second.number) == (7, 8)
    first.close()
    assert UidBlock(7, folder).number == 7
    second.close()


def test_the_last_block_is_followed_by_the_first(tmp_path: Path) -> None:
    held = UidBlock(uid_blocks.BLOCKS - 1, tmp_path / "users")
    assert UidBlock(uid_blocks.BLOCKS - 1, tmp_path / "users").number == 0
    held.close()


def test_a_killed_manager_holds_no_block(tmp_path: Path) -> None:
    folder = tmp_path / "users"
    with subprocess.Popen([sys.executable, "-c", CLAIM, str(folder)], stdout=subprocess.PIPE) as manager:
        assert manager.stdout is not None
        assert manager.stdout.readline() == b"7\n"
        other = UidBlock(7, folder)
        assert other.number == 8
        os.kill(manager.pid, signal.SIGKILL)
    assert UidBlock(7, folder).number == 7
    other.close()


def test_all_blocks_may_be_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uid_blocks, "BLOCKS", 2)
    held = [UidBlock(0, tmp_path / "users") for _ in range(2)]
    with pytest.raises(OSError, match="all 2 blocks"):
        UidBlock(0, tmp_path / "users")
    for block in held:
        block.close()


def test_locks_are_not_in_a_directory_of_others(tmp_path: Path) -> None:
    (tmp_path / "users").symlink_to(tmp_path)
    with pytest.raises(OSError):  # noqa: PT011  # ELOOP or ENOTDIR
        UidBlock(0, tmp_path / "users")
