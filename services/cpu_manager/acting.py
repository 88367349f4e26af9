"""One attempt in an environment: its parameters, the creation of the environment if there is none, and the result."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

from services.cpu_manager import metrics
from services.cpu_manager.environments.dop import with_dop
from services.cpu_manager.environments.limit import ExecutionLimit
from services.cpu_manager.environments.protocol import (
    ActEnd,
    ActEndedBy,
    BadEnvironment,
    Environment,
    Postponed,
    RuntimeUnavailable,
)
from services.cpu_manager.environments.runtimes import Runtimes
from services.cpu_manager.kinds import CORES, IN_ENVIRONMENTS, ONLY_LOOKS
from services.cpu_manager.outputs import encode_output, encode_whole
from shared.kinds.spec import Params
from shared.messages.environments import EnvironmentSpec
from shared.messages.grants import Granted
from shared.policy.model.results import AttemptResult, ExecutionStatus, lost, refused
from shared.runtime import log
from shared.runtime.clock import Clock

_log = log.get(__name__)

REASON_CHARS = 4096
"""Longest reason, in characters. It may contain the output of a set-up line."""
_STATUS: dict[ActEndedBy, ExecutionStatus] = {
    "done": "ok",
    "wall-limit": "timeout",
    "refused": "refused",
    "lost": "lost",
}


@dataclass(slots=True)
class Acting:
    """Executes attempts in environments, with the node's runtimes and limits."""

    runtimes: Runtimes
    clock: Clock
    output_bytes: int
    guard_s: float
    """Seconds past its limit after which an attempt that has not ended counts as our failure."""

    def params(self, grant: Granted) -> Params:
        """Return the action's parameters, with the number of granted cores filled in.

        Raises:
            ValueError: the parameters are malformed, or the kind does not run in environments.
        """
        kind = IN_ENVIRONMENTS.get(grant.work)
        if kind is None:
            raise ValueError(f"{grant.work} does not run in environments")
        return with_dop(kind.decoder.decode(grant.params), grant.units.get(CORES, 1))

    async def create(
        self, trajectory: str, spec: EnvironmentSpec, cores: frozenset[int]
    ) -> Environment | AttemptResult:
        """Return a new environment, or the result of an attempt without one.

        Raises only its own cancellation, and leaves nothing behind then.
        """
        began = self.clock.monotonic()
        try:
            runtime = self.runtimes.of(spec.image)
            async with asyncio.timeout(spec.setup_timeout_s + self.guard_s):
                environment = await runtime.create(trajectory, spec, cores)
        except BadEnvironment as error:
            return refused(str(error)[:REASON_CHARS])
        except Postponed as postponed:
            return AttemptResult("postponed", reason=str(postponed)[:REASON_CHARS], retry_in_s=postponed.retry_in_s)
        except RuntimeUnavailable as error:
            return lost(str(error)[:REASON_CHARS])
        except TimeoutError:
            return lost(f"no environment {self.guard_s:g} s after its time limit of {spec.setup_timeout_s:g} s")
        except Exception as error:  # noqa: BLE001  # a runtime's bug is our failure
            _log.exception("runtime_failed", trajectory=trajectory, image=spec.image)
            return lost(f"creating the environment failed: {type(error).__name__}")
        metrics.CREATION.labels(runtime.name).observe(self.clock.monotonic() - began)
        return environment

    def limit(self, grant: Granted) -> ExecutionLimit:
        """Return the limit after which an attempt counts as our failure."""
        return ExecutionLimit(grant.timeout_s + self.guard_s)

    async def act(
        self,
        grant: Granted,
        params: Params,
        environment: Environment,
        cores: frozenset[int],
        limit: ExecutionLimit,
    ) -> AttemptResult:
        """Execute the action. Raises only its own cancellation."""
        if not environment.alive:
            return AttemptResult("environment-lost", reason="its environment has died")
        try:
            async with limit:
                end = await environment.act(grant.work, params, cores, grant.timeout_s)
            return self._result(grant.work, end)
        except TimeoutError:
            return lost(f"no end {self.guard_s:g} s after its limit of {grant.timeout_s:g} s")
        except Exception as error:  # noqa: BLE001  # as above
            _log.exception("environment_action_failed", action=grant.action, work=grant.work)
            return lost(f"the action failed: {type(error).__name__}")

    def _result(self, kind: str, end: ActEnd) -> AttemptResult:
        if kind in ONLY_LOOKS:
            end, output = self._whole(end)
        else:
            output = encode_output(end.output, self.output_bytes)
        reason = end.reason[:REASON_CHARS]
        usage = {"cpu_s": end.cpu_s}
        return AttemptResult(_STATUS[end.ended_by], end.passed, None, output, reason, usage, end.peak_memory_bytes)

    def _whole(self, end: ActEnd) -> tuple[ActEnd, bytes]:
        """Return the complete output, or none of it. A result that is too large is an answer, like a missing file."""
        encoded = encode_whole(end.output, self.output_bytes)
        too_large = end.reason if end.ended_by == "refused" else ""
        if isinstance(encoded, int):
            too_large = f"{encoded} bytes of result; this node sends {self.output_bytes} at most"
        elif not too_large:
            return end, encoded
        ended = msgspec.structs.replace(end, ended_by="done", passed=False, reason=too_large)
        return ended, msgspec.json.encode({"error": too_large})
