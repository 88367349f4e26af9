"""The door as compose starts it, stops it, and asks for its health."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from services.engine_door.probe import problem

PATIENCE_S = 60.0


def opened(folder: Path, **settings: str) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "ENGINE_DOOR_ENGINE": str(folder / "engine.sock"), **settings}
    return subprocess.Popen([sys.executable, "-m", "services.engine_door"], env=environ, stderr=subprocess.PIPE)


def test_a_door_without_an_engine_is_open_and_not_healthy_and_stops_when_told(tmp_path: Path) -> None:
    socket = tmp_path / "made" / "door.sock"
    assert "FileNotFoundError" in str(problem(str(socket)))
    door = opened(tmp_path, ENGINE_DOOR_NODE="node-1", ENGINE_DOOR_LISTEN=str(socket))
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "Error" in (said := str(problem(str(socket)))):
            assert time.monotonic() < deadline, said
            assert door.poll() is None
            time.sleep(0.05)
        assert "503" in said
        assert "the engine cannot be reached" in said
        door.send_signal(signal.SIGTERM)
        _, logged = door.communicate(timeout=PATIENCE_S)
        assert door.returncode == 0, logged
    finally:
        door.kill()


def test_a_door_of_no_node_says_so(tmp_path: Path) -> None:
    door = opened(tmp_path, ENGINE_DOOR_LISTEN=str(tmp_path / "door.sock"))
    _, said = door.communicate(timeout=PATIENCE_S)
    assert door.returncode == 1
    assert b"ENGINE_DOOR_NODE" in said
    assert b"Traceback" not in said
