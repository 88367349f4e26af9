"""A process that stands for the one with the GPU: its kernels are Python functions. Started by `attempt` in tests."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
from typing import Any

from tests.services.gpu_manager.kernels import test_judge_process as kernels
from tests.services.gpu_manager.kernels.test_judge_process import FakeDevice


def hangs(*_: Any) -> None:
    time.sleep(1000)


def slow(*_: Any) -> None:
    time.sleep(0.3)


def ends(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Scripted(FakeDevice):
    """A device that fails as `mode` says, after the phase in which the mode applies has begun."""

    def __init__(self, mode: str, plan: dict[str, Any], channel: socket.socket) -> None:
        launch = {"wrong": kernels.wrong, "hangs": hangs, "ends": ends, "slow": slow}.get(mode, kernels.right)
        super().__init__(channel, plan["image"], plan["result"], launch)
        self._mode, self._result_fd = mode, plan["result"]

    def _send(self, answer: dict[str, Any]) -> None:
        raw = self.faults(answer)
        self._channel.sendall(raw if isinstance(raw, bytes) else json.dumps(raw).encode() + b"\n")

    def faults(self, answer: dict[str, Any]) -> dict[str, Any] | bytes:
        """Return what it sends instead of an answer."""
        if self._mode == "no device" or (self._mode == "breaks the GPU" and self.probed):
            return {"error": "cuInit: CUDA_ERROR_NO_DEVICE", "call": "cuInit", "code": 100}
        if "ready" in answer:
            if self._mode in ("faults", "breaks the GPU"):
                return {
                    "error": "cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS",
                    "call": "cuCtxSynchronize",
                    "code": 700,
                }
            if self._mode == "claims that there is no device":
                return {"error": "cuInit: CUDA_ERROR_NO_DEVICE", "call": "cuInit", "code": 100}
            if self._mode == "nested":
                return b"[" * 100_000 + b"\n"
        if self._mode == "forged time" and "device_ms" in answer:
            return b'{"device_ms": 1' + b"0" * 400 + b"}\n"
        if self._mode == "cuts memory" and "device_ms" in answer:
            try:
                os.ftruncate(self._result_fd, 0)
            except OSError:
                return b"no\n"  # the seal has held
        return answer

    probed = False


def main() -> None:
    mode = sys.argv[1]
    plan = json.load(sys.stdin)
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG
    channel = socket.socket(fileno=plan["channel"])
    module = os.fdopen(plan["module"], "rb", closefd=False).read()
    if mode == "does not start":
        sys.exit("no walls here")
    device = Scripted(mode, plan, channel)
    device.probed = not module
    refused_with = {"another GPU": 209, "no such kernel": 500, "too large": 2}.get(mode)
    if module and refused_with is not None:
        call = "cuModuleGetFunction" if mode == "no such kernel" else "cuModuleLoadData"
        device.refuses_load = {"error": f"{call}: CUDA_ERROR", "call": call, "code": refused_with}
    device.serve()


if __name__ == "__main__":
    main()
