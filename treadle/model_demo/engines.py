"""Processes of the demo's engines: found by their command lines, measured by their resident memory, and killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil

from treadle.model_demo.cases import SERVICES, Service
from treadle.model_demo.models import DemoModels

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class DemoEngine:
    """A running engine."""

    service: Service
    pid: int
    rss_gb: float
    """Resident memory, GB of 2^30 bytes. Shared pages count in each process."""
    age_s: float


def running_engines(models: DemoModels) -> list[DemoEngine]:
    """Return the engines that run now. Reads all of /proc: about 10 ms."""
    names: Mapping[str, Service] = {str(models.path_of(service)): service for service in SERVICES}
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or ()
        service = next((names[part] for part in line if part in names), None)
        if service is not None:
            with suppress(psutil.Error):
                age_s = time.time() - process.create_time()
                found.append(DemoEngine(service, process.pid, process.memory_info().rss / GIB, age_s))
    return found


def kill(engine: DemoEngine) -> bool:
    """Send SIGKILL. Return whether the process still ran."""
    with suppress(ProcessLookupError):
        os.kill(engine.pid, signal.SIGKILL)
        return True
    return False
