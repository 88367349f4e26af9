"""The judge as a process behind walls: it judges, and its reference reaches nothing of the host."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from services.cpu_manager.sandbox.rungs import Rung
from tests.services.cpu_manager.sandbox.conftest import rung_failures
from tests.services.gpu_manager.kernels.test_judge_process import FakeDevice, Launch, job, right, wrong

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def namespaces() -> None:
    if reason := rung_failures()[Rung.NAMESPACES]:
        pytest.skip(reason)


def judged_behind_walls(root: Path, launch: Launch, **changes: Any) -> dict[str, Any]:
    ours, theirs = socket.socketpair()
    image, result = os.memfd_create("image"), os.memfd_create("result")
    read, write = os.pipe()
    thread = threading.Thread(target=FakeDevice(theirs, image, result, launch).serve, daemon=True)
    thread.start()
    plan = {"role": "judge", "job": job(**changes), "channel": ours.fileno(), "image": image, "result": result,
            "out": write, "root": str(root), "devices": [], "shown": []}  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-m", "services.gpu_manager.kernels"],
        input=json.dumps(plan).encode(),
        pass_fds=(ours.fileno(), image, result, write),
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    for descriptor in (image, result, write):
        os.close(descriptor)
    ours.close()
    thread.join(10)
    theirs.close()
    with os.fdopen(read, "rb") as out:
        lines = out.read().splitlines()
    assert lines, ended.stderr.decode()
    report: dict[str, Any] = json.loads(lines[-1])["report"]
    return report


def test_it_judges(tmp_path: Path) -> None:
    assert judged_behind_walls(tmp_path, right)["cases"][0]["correct"]


def test_it_finds_a_wrong_kernel(tmp_path: Path) -> None:
    assert not judged_behind_walls(tmp_path, wrong)["cases"][0]["correct"]


@pytest.mark.parametrize(
    "line",
    [
        f"open({str(ROOT / 'pyproject.toml')!r})",
        "__import__('socket').create_connection(('127.0.0.1', 1), 1)",
        "__import__('os').setuid(1)",
        "__import__('os').chroot('/')",
        "open('/usr/made-by-a-reference', 'w')",
    ],
)
def test_its_reference_reaches_nothing_of_the_host(tmp_path: Path, line: str) -> None:
    report = judged_behind_walls(tmp_path, right, reference=f"def reference(a, b):\n    {line}\n    return a + b\n")
    assert "Error" in report["unusable"]


@pytest.mark.slow
def test_these_tests_as_an_ordinary_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user; the other tests ran as this ordinary one")
    base = Path("/tmp") / f"treadle-kernels-nobody-{os.getpid()}"  # pytest's own folders are closed to others
    command = [sys.executable, "-m", "tests.services.cpu_manager.sandbox.passable", "nobody", sys.executable]
    command += ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", f"--basetemp={base}"]
    command += [__file__, "-k", "not ordinary"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    subprocess.run(["rm", "-rf", str(base)], check=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
