"""Files of another user under a name that the manager will use: never followed, never removed."""

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cpu_manager.sandbox.instance import Instance, default_scratch, sweep
from services.cpu_manager.sandbox.local import LocalSandbox
from tests.services.cpu_manager.sandbox.conftest import passable

_OTHER = 65_533
"""A user besides root and nobody, the users of the other tests."""
_HEX = "0123456789ab"


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a directory like /tmp: all users may write, and only owners may remove their files."""
    with passable() as folder:
        place = folder / "tmp"
        place.mkdir()
        place.chmod(0o1777)
        monkeypatch.setattr("tempfile.tempdir", str(place))
        yield place


@pytest.fixture
def victim(shared: Path) -> Path:
    """A directory of this user with what a sweep would take for directories of dead managers."""
    folder = shared.parent / "victim"
    for name in (_HEX, "documents"):
        (folder / name).mkdir(parents=True)
        (folder / name / "precious").write_text("kept")
    return folder


def plant(link: Path, target: Path) -> None:
    """Make a symbolic link, as another user where we may become one."""
    user = _OTHER if os.geteuid() == 0 else None
    subprocess.run(["ln", "-s", "--", str(target), str(link)], check=True, cwd="/", user=user)


def kept(victim: Path) -> bool:
    names = sorted(path.name for path in victim.iterdir())
    return names == [_HEX, "documents"] and all(
        (victim / name / "precious").read_text() == "kept" for name in (_HEX, "documents")
    )


async def test_a_link_as_scratch_directory_is_rejected_and_its_target_kept(shared: Path, victim: Path) -> None:
    assert default_scratch().parent == shared
    plant(default_scratch(), victim)
    with pytest.raises(PermissionError, match="not a directory, or a symbolic link to one: remove it, or set TMPDIR"):
        await LocalSandbox.create()
    assert kept(victim)


def test_a_link_under_an_instances_name_is_left_alone(shared: Path, victim: Path) -> None:
    """A link of an escaped program: no other user can create a name in the scratch directory itself."""
    scratch = shared / "scratch"
    scratch.mkdir()
    plant_here = scratch / _HEX
    plant_here.symlink_to(victim / _HEX)
    assert sweep(scratch) == []
    assert kept(victim)
    assert plant_here.is_symlink()


def test_a_link_in_the_place_of_a_lock_or_a_note_is_not_followed(shared: Path, victim: Path) -> None:
    scratch = shared / "scratch"
    (scratch / _HEX).mkdir(parents=True)
    (scratch / _HEX / "lock").symlink_to(victim / "made")
    assert sweep(scratch) == []
    assert not (victim / "made").exists()


def test_a_sweep_removes_no_name_that_is_not_an_instances(shared: Path) -> None:
    scratch = shared / "scratch"
    mine = Instance(scratch)
    for name in ("documents", "0123456789AB", f"{_HEX}0"):
        (scratch / name).mkdir()
    (scratch / _HEX).mkdir()
    assert sweep(scratch) == [_HEX]
    assert sorted(path.name for path in scratch.iterdir()) == sorted(
        ["documents", "0123456789AB", f"{_HEX}0", mine.name]
    )
    mine.close()


def test_a_sweep_follows_no_link(shared: Path, victim: Path) -> None:
    scratch = shared / "scratch"
    (scratch / _HEX / "home-0").mkdir(parents=True)
    (scratch / _HEX / "home-0" / "link").symlink_to(victim)
    before = stat.S_IMODE(victim.stat().st_mode)
    assert sweep(scratch) == [_HEX]
    assert kept(victim)
    assert stat.S_IMODE(victim.stat().st_mode) == before


def test_directories_belong_to_this_user_alone(shared: Path) -> None:
    scratch = shared / "scratch"
    scratch.mkdir()
    scratch.chmod(0o777)
    instance = Instance(scratch)
    assert stat.S_IMODE(scratch.stat().st_mode) == 0o711, "others may not read or write what was open"
    assert stat.S_IMODE(instance.directory.stat().st_mode) == 0o700
    instance.close()
    fresh = Instance(shared / "fresh")
    assert stat.S_IMODE((shared / "fresh").stat().st_mode) == 0o700
    fresh.close()


def test_a_directory_of_another_user_is_rejected(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = shared / "scratch"
    scratch.mkdir()
    if os.geteuid() == 0:
        os.chown(scratch, _OTHER, _OTHER)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: _OTHER)
    with pytest.raises(PermissionError, match=r"belongs to uid \d+, not to \d+: remove it, or set TMPDIR"):
        Instance(scratch)


def test_a_parent_in_which_every_user_may_rename_is_rejected(shared: Path) -> None:
    shared.chmod(0o777)
    with pytest.raises(PermissionError, match="everybody may rename"):
        Instance(shared / "scratch")
