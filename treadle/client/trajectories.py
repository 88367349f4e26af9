"""The client's trajectories: open, act, view, change, close."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from treadle.client.actions import run_action
from treadle.client.answers import Answer, RecordedCall, TrainingRow, TrajectoryView
from treadle.client.requests import TrajectoryAction, TrajectoryActionKind, TrajectoryChange, TrajectoryRequest
from treadle.client.transport import Transport, quoted

S = TypeVar("S")


class AsyncTrajectories:
    """Trajectories of one mesh."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def open(self, request: TrajectoryRequest | None = None) -> TrajectoryView:
        """Open a trajectory. Its environment is made for its first action.

        Args:
            request: its environment. It gets a `request_id` if it has none, so that retries open one trajectory.
        Raises:
            Conflict: its `request_id` has opened another one.
            Overloaded: too many were open until the retry policy gave up.
        """
        opening = request or TrajectoryRequest()
        if opening.request_id is None:
            opening = msgspec.structs.replace(opening, request_id=uuid.uuid4().hex)
        return await self._transport.call(TrajectoryView, "POST", "/v1/trajectories", opening)

    async def view(self, trajectory: str) -> TrajectoryView:
        """Return a trajectory.

        Raises:
            NotFound: it was never opened, or ended long ago.
        """
        return await self._transport.call(TrajectoryView, "GET", f"/v1/trajectories/{quoted(trajectory)}")

    async def act(
        self, /, trajectory: str, kind: TrajectoryActionKind, params: Mapping[str, Any] | None = None, **rest: Any
    ) -> Answer:
        """Run one action in its environment and return its answer, however it ended.

        Args:
            trajectory: its id.
            kind: `env.bash`, `env.exec`, `env.read` ... (docs/environments.md)
            params: parameters of the kind.
            rest: other fields of `TrajectoryAction`: `units`, `timeout_s`, `budget_s`, `request_id` ...
        Raises:
            BadRequest: the mesh rejects the kind, its parameters or a field.
            Conflict: the trajectory has ended; the error has the reason.
            NotFound: there is no such trajectory.
        """
        action = TrajectoryAction(kind=kind, params=params or {}, **rest)
        return await run_action(self._transport, f"/v1/trajectories/{quoted(trajectory)}/actions", action)

    async def prioritize(self, trajectory: str, priority: float) -> TrajectoryView:
        """Change the priority of a trajectory, for its unanswered and its later actions. Idempotent.

        Args:
            trajectory: its id.
            priority: seconds by which its actions go later in the order of the tenant; negative for earlier.
        Raises:
            Conflict: the trajectory has ended; the error has the reason.
            NotFound: there is no such trajectory.
        """
        change = TrajectoryChange(priority=priority)
        return await self._transport.call(TrajectoryView, "PATCH", f"/v1/trajectories/{quoted(trajectory)}", change)

    async def rows(self, trajectory: str) -> list[TrainingRow]:
        """Return the training rows of a trajectory that was opened with `record="tokens"` (docs/token-records.md).

        Raises:
            Conflict: its calls are not recorded.
            NotFound: there is no such trajectory, or its record has expired.
        """
        return await self._lines(TrainingRow, f"/v1/trajectories/{quoted(trajectory)}/tokens")

    async def model_calls(self, trajectory: str) -> list[RecordedCall]:
        """Return the recorded model calls of a trajectory, without ids. Raises as `rows`."""
        return await self._lines(RecordedCall, f"/v1/trajectories/{quoted(trajectory)}/tokens/calls")

    async def trace(self, trajectory: str) -> dict[str, Any]:
        """Return the trace of a trajectory in OpenTelemetry's format, as a collector takes it (docs/trajectories.md).

        Raises:
            NotFound: there is no such trajectory.
        """
        path = f"/v1/trajectories/{quoted(trajectory)}/trace"
        return self._transport.decoded(dict[str, Any], await self._transport.send("GET", path, None, {}), path)

    async def delete_tokens(self, trajectory: str) -> None:
        """Delete the record of a trajectory's model calls, when its rows are read. Idempotent."""
        await self._transport.send("DELETE", f"/v1/trajectories/{quoted(trajectory)}/tokens", None, {})

    async def _lines(self, line: type[S], path: str) -> list[S]:
        reply = await self._transport.send("GET", path, None, {})
        return [self._transport.decoded(line, one, path) for one in reply.splitlines()]

    async def close(self, trajectory: str) -> TrajectoryView:
        """End a trajectory: cancel its unanswered actions and close its environment. Idempotent.

        Raises:
            NotFound: there is no such trajectory.
        """
        return await self._transport.call(TrajectoryView, "DELETE", f"/v1/trajectories/{quoted(trajectory)}")
