"""Tasks of the steps of engines.

Law: each step ends in exactly one `Stepped`, also if it is cancelled for others or raises an unexpected error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from services.gpu_manager.backends.protocol import Level, OutOfMemory
from services.gpu_manager.engine_failures import failure_reason
from services.gpu_manager.metrics import STEP_SECONDS
from shared.policy.serving.model import InstanceId, Outcome, Step, Stepped
from shared.runtime import log
from shared.runtime.clock import Clock

_log = log.get(__name__)

Work = Coroutine[Any, Any, Level | None]


@dataclass(slots=True)
class StepTasks:
    """Steps under way of one node."""

    clock: Clock
    spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
    ended: Callable[[Stepped], None]
    _tasks: dict[InstanceId, asyncio.Task[None]] = field(default_factory=dict)
    _cancelled: set[InstanceId] = field(default_factory=set)

    def begin(self, instance: InstanceId, step: Step, work: Work) -> None:
        """Begin a step. The one before of its instance has ended."""
        self._tasks[instance] = self.spawn(self._run(instance, step, work), f"{step} {instance}")

    def cancel(self, instance: InstanceId) -> None:
        """Cancel the step under way. Backends end what they have started before it ends."""
        self._cancelled.add(instance)
        # A task that is cancelled before its first turn never runs, and would not report its end.
        asyncio.get_running_loop().call_soon(self._tasks[instance].cancel)

    async def _run(self, instance: InstanceId, step: Step, work: Work) -> None:
        began, left = self.clock.monotonic(), None
        outcome: Outcome = "ok"
        reason = ""
        try:
            left = await work
        except OutOfMemory as error:
            outcome, reason = "oom", error.reason
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if instance not in self._cancelled and (task is None or task.cancelling()):
                raise
            outcome, reason = "failed", "it was cancelled"
        except Exception as error:  # noqa: BLE001
            outcome, reason = "failed", failure_reason(error, instance, step)
        took_s = self.clock.monotonic() - began
        STEP_SECONDS.labels(step, outcome).observe(took_s)
        if outcome != "ok":
            _log.warning("engine_step_failed", instance=str(instance), step=step, outcome=outcome, reason=reason)
        self._cancelled.discard(instance)
        del self._tasks[instance]
        self.ended(Stepped(instance, step, outcome, reason, took_s, left or "cold"))
