"""The client's trajectories: open, act, view, close."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from treadle.client.actions import run_action
from treadle.client.answers import Answer, TrajectoryView
from treadle.client.calls import Calls
from treadle.client.requests import TrajectoryAction, TrajectoryRequest


class AsyncTrajectories:
    """Trajectories of one proxy, seen by one caller."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def open(self, request: TrajectoryRequest | None = None) -> TrajectoryView:
        """Open a trajectory. Its environment is made for its first action.

        Args:
            request: its environment; without a `request_id` it gets one, so that tries are harmless.
        Raises:
            Conflict: its `request_id` has opened another one.
            Overloaded: too many are open, for longer than patience lasts.
        """
        asked = request or TrajectoryRequest()
        if asked.request_id is None:
            asked = msgspec.structs.replace(asked, request_id=uuid.uuid4().hex)
        return await self._calls.read(TrajectoryView, "POST", "/v1/trajectories", asked)

    async def view(self, trajectory: str) -> TrajectoryView:
        """Return a trajectory.

        Raises:
            NotFound: it was never opened, or ended long ago.
        """
        return await self._calls.read(TrajectoryView, "GET", f"/v1/trajectories/{trajectory}")

    async def act(self, /, trajectory: str, kind: str, params: Mapping[str, Any] | None = None, **rest: Any) -> Answer:
        """Run one action in its environment and return its answer, however it ended.

        Args:
            trajectory: its id.
            kind: `env.bash`, `env.exec`, `env.read` ... (docs/environments.md)
            params: the kind's own.
            rest: other fields of `TrajectoryAction`: `units`, `timeout_s`, `budget_s`, `request_id` ...
        Raises:
            BadRequest: it has no meaning.
            Conflict: the trajectory has ended; the error says how.
            NotFound: there is no such trajectory.
        """
        action = TrajectoryAction(kind=kind, params=params or {}, **rest)
        return await run_action(self._calls, f"/v1/trajectories/{trajectory}/actions", action)

    async def close(self, trajectory: str) -> TrajectoryView:
        """End it: unanswered actions are cancelled, its environment ends. Closing it again changes nothing.

        Raises:
            NotFound: there is none.
        """
        return await self._calls.read(TrajectoryView, "DELETE", f"/v1/trajectories/{trajectory}")
