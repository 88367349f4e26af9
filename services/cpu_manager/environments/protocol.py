"""Interface of a runtime: creates and controls trajectories' environments.

An environment keeps its files, background processes, shells and their directories from one action to the next. It has
cores only during an action (ARL-Tangram §5.2, allocate-on-execution): between actions everything in it is frozen.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from shared.kinds.spec import Params
from shared.messages.environments import EnvironmentSpec

ActEndedBy = Literal["done", "wall-limit", "refused", "lost"]
"""`done`: it ran to its end, or failed for a reason of its own (no such file). `wall-limit`: its processes were killed
at the time limit; the environment continues. `refused`: it asks for what this node never gives. `lost`: our failure;
the environment continues if `Environment.alive` is still True."""


class ActEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one action in an environment. Durations are seconds, monotonic; sizes are bytes."""

    ended_by: ActEndedBy
    passed: bool | None = None
    """True: exit code 0, or the file operation succeeded. None if it did not end by itself."""
    output: dict[str, Any] = {}
    """JSON-able, the same under every runtime (docs/environments.md): `exit_code`, `stdout`, `stderr`, `output`,
    `content`, `entries`, `error` ..., by kind."""
    reason: str = ""
    """One sentence for people if it did not pass."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """CPU time of everything in the environment during the action."""
    peak_memory_bytes: int = 0


class Environment(Protocol):
    """One trajectory's environment on this node. One action at a time; all methods on the manager's event loop."""

    @property
    def trajectory(self) -> str: ...

    @property
    def spec(self) -> EnvironmentSpec: ...

    @property
    def alive(self) -> bool:
        """True if it can act. False after it has died by itself (its container was killed) or was closed."""
        ...

    async def act(self, kind: str, params: Params, cores: frozenset[int], timeout_s: float) -> ActEnd:
        """Thaw it on exactly these cores, execute one action (`services.cpu_manager.kinds`), freeze it.

        `params` are filled in (they contain no `{dop}`). When it returns or raises, no process of the environment has a
        core. If it is cancelled, the action's foreground processes are ended first.
        It does not raise for what the action does; our own failures are returned as `lost`.
        """
        ...

    async def park(self) -> bool:
        """Stop the clock of the running action, and freeze it. Return True when no process has a core.

        False: no action runs in it now, or it has just ended. If `act` is cancelled meanwhile, it is thawed
        for some milliseconds on the cores that it had, and the foreground processes are ended.

        Raises:
            NotImplementedError: its agent is of an earlier version.
            RuntimeUnavailable: it cannot be frozen now. The action runs on; this may be tried again.
        """
        ...

    async def resume(self, cores: frozenset[int]) -> None:
        """Continue the parked action on exactly these cores. No effect if none is parked. If that fails, `act` returns
        `lost`.
        """
        ...

    async def cpu_s(self) -> float | None:
        """Return the CPU time of everything in it since its beginning, in seconds. None: it cannot be measured now."""
        ...

    async def close(self) -> None:
        """End it and remove everything it left. Safe to call again, and during an action."""
        ...


class BadEnvironment(Exception):
    """The environment cannot be created for a reason of its own: no such image, a set-up line failed.

    A retry would not help; the message is for the trainer.
    """


class RuntimeUnavailable(Exception):
    """The environment could not be created now, and the cause is ours (engine unreachable, no memory left)."""


class Postponed(RuntimeUnavailable):
    """The environment cannot be created yet. Nothing has failed: the attempt does not count."""

    def __init__(self, reason: str, retry_in_s: float) -> None:
        super().__init__(reason)
        self.retry_in_s = retry_in_s


class Runtime(Protocol):
    """A way to create environments. tests/conformance/test_runtimes.py checks each runtime of the node."""

    name: str
    """`local`, `docker`: in `/v1/nodes` and in labels."""

    async def create(self, trajectory: str, spec: EnvironmentSpec, cores: frozenset[int]) -> Environment:
        """Create an environment and run its set-up lines on these cores. It is returned frozen.

        Bounded by `spec.setup_timeout_s`. Cancelling leaves nothing behind.

        Raises:
            BadEnvironment: the cause is the trainer's.
            Postponed: not possible yet.
            RuntimeUnavailable: the cause is ours; it may be retried.
        """
        ...

    def images(self) -> frozenset[str]:
        """Return the images that need no pull, by familiar names (`shared.api.images`)."""
        ...

    async def survivors(self) -> list[Environment]:
        """Adopt the existing environments of an earlier manager of this node: end their actions and freeze them.

        Called once, before any creation. Environments that cannot be adopted are removed.
        """
        ...

    async def prepare(self, image: str) -> None:
        """Pull this image now, because an environment of it is expected. Return when it is present; never raise."""
        ...

    async def close(self) -> None:
        """End every environment and release the runtime's own resources."""
        ...
