"""Folders of a stack that were there before: links and folders of others are refused, opened ones are closed."""

import os
import stat
from pathlib import Path

import pytest

from shared.runtime.stack_state import StackError
from treadle.stack.home import open_home


@pytest.fixture
def root(stack_home: Path) -> Path:
    open_home(stack_home)
    return stack_home


@pytest.mark.parametrize("name", ["run", "log", "sockets"])
def test_a_folder_that_was_opened_to_others_is_closed_again(root: Path, name: str) -> None:
    (root / name).chmod(0o777)
    home = open_home(root)
    assert stat.S_IMODE((home.root / name).stat().st_mode) == 0o700


def test_the_mode_of_the_home_itself_is_left_alone(root: Path) -> None:
    root.chmod(0o755)
    open_home(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o755


def test_a_link_in_the_place_of_a_folder_is_refused(root: Path, tmp_path: Path) -> None:
    (root / "run").rename(root / "moved")
    (root / "run").symlink_to(tmp_path)
    before = tmp_path.stat().st_mode
    with pytest.raises(StackError, match="is a link or a file, and should be a folder"):
        open_home(root)
    assert tmp_path.stat().st_mode == before


def test_a_folder_of_another_user_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(root / "run", 65_533, 65_533)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 65_533)
    with pytest.raises(StackError, match=r"belongs to uid \d+, and should be a folder of \d+"):
        open_home(root)
