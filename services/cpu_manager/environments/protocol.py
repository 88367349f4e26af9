"""What the manager asks of a container runtime, and what it gets: the seam between trajectories and their walls.

An environment keeps its files, background processes, shells and their directories from one action to the next. It has
cores only while it acts (ARL-Tangram §5.2, allocate-on-execution): between actions everything in it is frozen.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from shared.messages.environments import EnvironmentSpec
from shared.messages.kinds import Params

ActEndedBy = Literal["done", "wall-limit", "refused", "lost"]
"""`done`: it ran to its end, or could not for a reason of its own (no such file). `wall-limit`: its processes were
ended with its time; the environment goes on. `refused`: it asks for what this node never gives. `lost`: our failure;
the environment goes on where `Environment.alive` still says so."""


class ActEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How one action in an environment ended. Durations are seconds, monotonic; sizes are bytes."""

    ended_by: ActEndedBy
    passed: bool | None = None
    """Exit code 0, or the file operation succeeded. None where it did not end by itself."""
    output: dict[str, Any] = {}
    """JSON-able, the same under every runtime (docs/environments.md): `exit_code`, `stdout`, `stderr`, `output`,
    `content`, `entries`, `error` ..., by kind."""
    reason: str = ""
    """One sentence for people, when it did not pass."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """Of everything in the environment while it acted."""
    peak_memory_bytes: int = 0


class Environment(Protocol):
    """One trajectory's environment on this node. One action at a time; all methods on the manager's event loop."""

    @property
    def trajectory(self) -> str: ...

    @property
    def spec(self) -> EnvironmentSpec: ...

    @property
    def alive(self) -> bool:
        """It can act. False once it has died by itself (its container was killed) or was closed."""
        ...

    async def act(self, kind: str, params: Params, cores: frozenset[int], timeout_s: float) -> ActEnd:
        """Thaw it on exactly these cores, do one thing (`shared.messages.kinds.ENVIRONMENT_KINDS`), freeze it again.

        `params` come filled (no `{dop}` is left in them). When it returns or raises, no process of the environment has
        a core, also when it was cancelled: then what the action started in the foreground is ended first.
        Never raises for what the action does; our own failures come back as `lost`.
        """
        ...

    async def close(self) -> None:
        """End it and remove all it left. Safe to call again, and while it acts."""
        ...


class BadEnvironment(Exception):
    """The environment cannot be made for a reason of its own: no such image, a set-up line failed. Trying again would
    not help; the message is for the trainer.
    """


class RuntimeUnavailable(Exception):
    """The environment could not be made just now, and the fault is ours (engine out of reach, no memory left)."""


class Postponed(RuntimeUnavailable):
    """The environment cannot be made before a while, and nobody failed: the attempt does not count."""

    def __init__(self, reason: str, retry_in_s: float) -> None:
        super().__init__(reason)
        self.retry_in_s = retry_in_s


class Runtime(Protocol):
    """A way to make environments. Held by tests/conformance/test_runtimes.py for each that the node has."""

    name: str
    """`local`, `docker`: in `/v1/nodes` and in labels."""

    async def create(self, trajectory: str, spec: EnvironmentSpec, cores: frozenset[int]) -> Environment:
        """Make an environment and run its set-up lines on these cores; it comes back frozen.

        Bounded by `spec.setup_timeout_s`. Cancelling leaves nothing behind.

        Raises:
            BadEnvironment: the trainer's fault.
            Postponed: not before a while.
            RuntimeUnavailable: ours; may be tried again.
        """
        ...

    def images(self) -> frozenset[str]:
        """What its environments can be made of without a pull, by familiar names (`shared.api.images`)."""
        ...

    async def survivors(self) -> list[Environment]:
        """Take up what an earlier life of this node's manager made and what still stands, frozen, with whatever acted
        ended. Called once, before anything is created. What cannot be taken up is removed.
        """
        ...

    async def prepare(self, image: str) -> None:
        """An environment of this image will be asked for: pull it now. Returns when it is there; never raises."""
        ...

    async def close(self) -> None:
        """End every environment and what the runtime itself holds."""
        ...
