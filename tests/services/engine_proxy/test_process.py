"""The engine proxy as compose starts it, stops it, and asks for its health."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from services.engine_proxy.probe import problem

PATIENCE_S = 60.0


def opened(folder: Path, **settings: str) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "ENGINE_PROXY_ENGINE": str(folder / "engine.sock"), **settings}
    return subprocess.Popen([sys.executable, "-m", "services.engine_proxy"], env=environ, stderr=subprocess.PIPE)


def test_a_door_without_an_engine_is_open_and_not_healthy_and_stops_when_told(tmp_path: Path) -> None:
    socket = tmp_path / "made" / "proxy.sock"
    assert "FileNotFoundError" in str(problem(str(socket)))
    proxy = opened(tmp_path, ENGINE_PROXY_NODE="node-1", ENGINE_PROXY_LISTEN=str(socket))
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "Error" in (said := str(problem(str(socket)))):
            assert time.monotonic() < deadline, said
            assert proxy.poll() is None
            time.sleep(0.05)
        assert "503" in said
        assert "the engine cannot be reached" in said
        proxy.send_signal(signal.SIGTERM)
        _, logged = proxy.communicate(timeout=PATIENCE_S)
        assert proxy.returncode == 0, logged
    finally:
        proxy.kill()


def test_a_door_of_no_node_says_so(tmp_path: Path) -> None:
    proxy = opened(tmp_path, ENGINE_PROXY_LISTEN=str(tmp_path / "proxy.sock"))
    _, said = proxy.communicate(timeout=PATIENCE_S)
    assert proxy.returncode == 1
    assert b"ENGINE_PROXY_NODE" in said
    assert b"Traceback" not in said
