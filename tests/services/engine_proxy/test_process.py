"""The engine proxy as a process: start, stop and health, as in compose."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from services.engine_proxy.probe import problem

PATIENCE_S = 60.0


def start_process(folder: Path, **settings: str) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "ENGINE_PROXY_ENGINE": str(folder / "engine.sock"), **settings}
    return subprocess.Popen([sys.executable, "-m", "services.engine_proxy"], env=environ, stderr=subprocess.PIPE)


def test_a_proxy_without_an_engine_is_unhealthy_and_stops_at_sigterm(tmp_path: Path) -> None:
    socket = tmp_path / "made" / "proxy.sock"
    assert "FileNotFoundError" in str(problem(str(socket)))
    proxy = start_process(tmp_path, ENGINE_PROXY_NODE="node-1", ENGINE_PROXY_LISTEN=str(socket))
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "Error" in (reported := str(problem(str(socket)))):
            assert time.monotonic() < deadline, reported
            assert proxy.poll() is None
            time.sleep(0.05)
        assert "503" in reported
        assert "the engine cannot be reached" in reported
        proxy.send_signal(signal.SIGTERM)
        _, logged = proxy.communicate(timeout=PATIENCE_S)
        assert proxy.returncode == 0, logged
    finally:
        proxy.kill()


def test_a_missing_node_is_reported(tmp_path: Path) -> None:
    proxy = start_process(tmp_path, ENGINE_PROXY_LISTEN=str(tmp_path / "proxy.sock"))
    _, reported = proxy.communicate(timeout=PATIENCE_S)
    assert proxy.returncode == 1
    assert b"ENGINE_PROXY_NODE" in reported
    assert b"Traceback" not in reported
