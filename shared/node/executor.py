"""Protocols that a manager implements: `Executor`; `Environments` if it has environments; `Parking` if it can freeze.

The agent does the rest: hello, heartbeats, inventory, grants, queue, outbox, units and their integrals, stop. It names
no resource and no kind (tests/architecture/executors.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from shared.messages.grants import Granted
from shared.messages.outcomes import EnvironmentHeld
from shared.node.resource_usage import ResourceUsage
from shared.policy.model.results import AttemptResult
from shared.runtime.units import Seconds


class Offer(NamedTuple):
    """Kinds, labels and runtimes of a node. An offer may grow while the node runs, and nothing is withdrawn from it."""

    kinds: list[str]
    """Action kinds that it executes."""
    labels: dict[str, str] = {}
    """For people, in /v1/nodes."""
    runtimes: list[str] = []
    """Runtimes that can create environments here."""


class Executor(Protocol):
    """A manager's own part: its units, its kinds, and the execution of one grant.

    Law: `start` is called once for each grant that begins, when its units are free; `release` once for each `start`,
    after the task has ended and before its outcome is reported.
    """

    @property
    def resources(self) -> Mapping[str, ResourceUsage]:
        """Resource -> its units on this node. The names are fixed while the agent runs. The agent counts what grants
        hold; the executor counts what it holds beyond them, for example memory of environments.
        """

    def offer(self) -> Offer:
        """Return what the node offers now. After a change, call `NodeAgent.publish_offer`."""

    def start(self, grant: Granted) -> asyncio.Task[AttemptResult]:
        """Start a grant, and return its task at once. A grant of an unknown kind, or with malformed parameters, ends as
        `refused`.

        To cancel the task is to revoke the attempt: it kills its work and raises `CancelledError`, in bounded time. The
        task may return a result instead: if it has just ended, or `cancelled` with its usage. It raises nothing else.
        """

    def release(self, grant: Granted, task: asyncio.Task[AttemptResult]) -> None:
        """Release what `start` has assigned. The attempt has ended, maybe before its first step."""


class Parking(Protocol):
    """Parking of running attempts, for managers that can freeze them. Without it, requests to park are ignored.

    Law: between `park` that has returned True and `resume`, the attempt has nothing of what `start` had assigned, and
    makes no progress; its time limit stands still. It may end meanwhile, as always by its task.
    """

    async def park(self, task: asyncio.Task[AttemptResult]) -> bool:
        """Freeze the attempt as soon as it can be frozen, and release what is assigned to it. False: nothing changed.

        Cancelled if the attempt ends meanwhile.
        """

    def resume(self, grant: Granted, task: asyncio.Task[AttemptResult]) -> None:
        """Assign units to a parked attempt again, and thaw it. Its units are free."""


class Environments(Protocol):
    """Environments of trajectories on a node, for managers that have them. They report their ends themselves."""

    def held(self, waiting: Iterable[Granted]) -> list[EnvironmentHeld]:
        """Return what all environments hold, and what the waiting grants will make them hold."""

    def exists(self, grant: Granted) -> bool:
        """Return False if this grant was to create an environment and the environment does not exist."""

    def close(self, trajectory: str) -> None:
        """Close the trajectory's environment and report its end, also if there is none."""

    def images(self) -> frozenset[str]:
        """Return the images of which environments can be created without a pull."""

    def prepare(self, image: str) -> None:
        """Prepare for environments of this image."""

    def check(self) -> None:
        """Report changes that no action has noticed. Called with each heartbeat."""

    def end_all(self, reason: str) -> None:
        """Begin to end all environments, because the node stops."""

    async def closed(self, within_s: Seconds) -> None:
        """Wait until the ends have been reported; at most `within_s`."""
