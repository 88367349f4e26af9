"""Paths of the host that an operator shows to programs: readable, and nothing else. On every rung of this machine."""

from __future__ import annotations

import pytest

from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import Exit, Limits, PythonJob
from services.cpu_manager.sandbox.rungs import Rung
from services.cpu_manager.sandbox.toolchain import detect
from services.cpu_manager.settings import CpuManagerSettings
from shared.runtime.settings import WrongSetting, load
from tests.services.cpu_manager.sandbox.cells import CORE
from tests.services.cpu_manager.sandbox.conftest import passable

SHOWN = "/opt"
"""Every Debian has it."""
LOOK = f"""
import os
new = {SHOWN + "/new"!r}
for attempt in (lambda: os.listdir({SHOWN!r}), lambda: open(new, "w"), lambda: os.chmod({SHOWN!r}, 0o777)):
    try:
        attempt()
        print("done")
    except OSError as error:
        print("refused")
"""


async def looked(rung: Rung, shown: tuple[str, ...]) -> str:
    with passable() as folder:
        sandbox = await LocalSandbox.create(rung=rung, scratch=folder / "scratch", tools=detect(shown))
        try:
            ended: Exit = await sandbox.run(PythonJob(source=LOOK, limits=Limits(wall_s=20.0)), CORE)
        finally:
            await sandbox.close()
    assert ended.exit_code == 0, ended
    return ended.stdout.decode()


async def test_a_shown_path_can_be_read_and_not_changed(rung: Rung) -> None:
    assert await looked(rung, ()) == "refused\n" * 3
    assert await looked(rung, (SHOWN,)) == "done\nrefused\nrefused\n"


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        ("opt", "not an absolute path"),
        ("/opt/../etc", "not an absolute path"),
        ("/", "a directory of their own"),
        ("/opt:/tmp/agents", "a directory of their own"),
        ("/etc/ssl", "a directory of their own"),
        ("/proc/1", "a directory of their own"),
        ("/var", "a directory of their own"),
        ("/opt/nothing-of-this-name", "does not exist"),
    ],
)
def test_what_cannot_be_shown_is_rejected_at_the_start(
    paths: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPU_MANAGER_VISIBLE_PATHS", paths)
    with pytest.raises(WrongSetting, match=reason):
        load(CpuManagerSettings)


def test_paths_of_the_system_are_visible_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_MANAGER_VISIBLE_PATHS", "/usr/share:/bin/sh:/opt")
    assert load(CpuManagerSettings).visible_paths == ("/opt",)


def test_nothing_is_shown_by_default() -> None:
    assert load(CpuManagerSettings).visible_paths == ()


def test_paths_are_separated_by_colons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_MANAGER_VISIBLE_PATHS", "/opt/:/srv")
    assert load(CpuManagerSettings).visible_paths == ("/opt", "/srv")
