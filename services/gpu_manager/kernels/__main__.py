"""The two processes of an attempt: `device` and `judge`, each behind walls. Started by `attempt`."""

from __future__ import annotations

import json
import os
import socket
import sys

from services.gpu_manager.kernels import cell

_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def main() -> None:
    """Read the plan from standard input, build the walls, and run the role."""
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # a process with threads of NumPy can enter no user namespace
    plan = json.load(sys.stdin)
    channel = socket.socket(fileno=plan["channel"])
    if plan["role"] == "device":
        from services.gpu_manager.kernels.device_process import DeviceProcess

        with open(plan["module"], "rb", closefd=True) as file:  # noqa: PTH123  # by descriptor
            module = file.read()
        os.environ.update(plan["environment"])

        def work() -> None:
            DeviceProcess(channel, module, plan["image"], plan["result"], plan["library"]).serve()
    else:
        from services.gpu_manager.kernels.judge_process import report_of

        def work() -> None:
            report_of(plan["job"], channel, plan["image"], plan["result"], plan["out"])

    cell.enter(work, plan["root"], tuple(plan["devices"]), tuple(plan["shown"]))


if __name__ == "__main__":
    main()
