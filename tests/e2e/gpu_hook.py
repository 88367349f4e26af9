"""A hook of an operator for tests: writes its calls, and does what the file `mode` of its folder says."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import psutil


def main() -> None:
    """Write one line for each call: event, GPUs, and the engines that run on these."""
    folder, engine = Path(sys.argv[1]), sys.argv[2]
    given = json.load(sys.stdin)
    engines = [
        one.pid
        for one in psutil.process_iter(["cmdline", "environ"])
        if engine in (one.info["cmdline"] or [])
        and sys.argv[0] not in one.info["cmdline"]  # a hook, perhaps of a manager that was killed a moment ago
        and {*map(str, given["gpus"])} & {*(one.info["environ"] or {}).get("CUDA_VISIBLE_DEVICES", "0,1").split(",")}
    ]
    with (folder / "calls").open("a") as calls:
        print(json.dumps({"event": os.environ["TREADLE_EVENT"], "gpus": given["gpus"], "engines": engines}), file=calls)
    mode = folder / f"mode-{os.environ['TREADLE_EVENT']}"
    text = mode.read_text() if mode.exists() else ""
    if text == "hang":
        time.sleep(600)
    sys.exit(text or 0)


if __name__ == "__main__":
    main()
