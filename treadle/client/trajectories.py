"""The client's trajectories: open, act, look, close."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from shared.api.requests import Answer
from shared.api.trajectories import TrajectoryAction, TrajectoryRequest, TrajectoryView
from shared.runtime.units import Seconds
from treadle.client.problems import Unexpected

S = TypeVar("S")

POLL_S: Seconds = 20.0
"""One long poll: well below the silence after which a connection is opened anew."""

_encoder = msgspec.json.Encoder()
_view = msgspec.json.Decoder(TrajectoryView)
_JSON = {"content-type": "application/json"}


class Acted(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """An action's answer. (msgspec decodes a Raw that stands alone, not the union with None that `Answer` has.)"""

    output: msgspec.Raw = msgspec.Raw(b"null")
    """What the kind reports (docs/environments.md)."""


_acted = msgspec.json.Decoder(Acted)


class Send(Protocol):
    """One call of the door, made again while that is away."""

    async def __call__(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], query: dict[str, str] | None = None
    ) -> bytes: ...


class Trajectories:
    """Trajectories of one proxy, seen by one caller."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def open(self, request: TrajectoryRequest | None = None) -> TrajectoryView:
        """Open a trajectory. Nothing is made before its first action.

        Args:
            request: what it lives in; without a `request_id` it gets one, so that tries are harmless.
        Raises:
            Conflict: its `request_id` has opened another one.
            Overloaded: too many are open, for longer than patience lasts.
        """
        asked = request or TrajectoryRequest()
        if asked.request_id is None:
            asked = msgspec.structs.replace(asked, request_id=uuid.uuid4().hex)
        return await self._read(_view, "POST", "/v1/trajectories", _encoder.encode(asked))

    async def view(self, trajectory: str) -> TrajectoryView:
        """A trajectory as it stands.

        Raises:
            NotFound: it was never opened, or ended long ago.
        """
        return await self._read(_view, "GET", f"/v1/trajectories/{trajectory}")

    async def act(self, trajectory: str, kind: str, params: Mapping[str, Any] | None = None, **rest: Any) -> Acted:
        """One action in its environment, and its answer however it ended. Waits until there is one.

        Args:
            kind: `env.bash`, `env.exec`, `env.read` ...
            params: the kind's own.
            rest: other fields of `TrajectoryAction`: `units`, `timeout_s`, `budget_s`, `request_id` ...
        Raises:
            BadRequest: it does not mean anything.
            Conflict: the trajectory has ended; the error says how.
            NotFound: there is no such trajectory.
        """
        asked = {"request_id": uuid.uuid4().hex, **rest}
        action = TrajectoryAction(kind=kind, params=msgspec.Raw(_encoder.encode(params or {})), **asked)
        path, wait = f"/v1/trajectories/{trajectory}/actions", {"wait": f"{POLL_S:g}"}
        answer = await self._read(_acted, "POST", path, _encoder.encode(action), wait)
        while answer.state != "finished":
            answer = await self._read(_acted, "GET", f"/v1/actions/{answer.id}", None, wait)
        return answer

    async def close(self, trajectory: str) -> TrajectoryView:
        """End it: what is unanswered is cancelled, its environment ends. Closing it again changes nothing.

        Raises:
            NotFound: there is none.
        """
        return await self._read(_view, "DELETE", f"/v1/trajectories/{trajectory}")

    async def _read(
        self,
        decoder: msgspec.json.Decoder[S],
        method: str,
        path: str,
        body: bytes | None = None,
        query: dict[str, str] | None = None,
    ) -> S:
        reply = await self._send(method, path, body, _JSON, query)
        try:
            return decoder.decode(reply)
        except msgspec.MsgspecError as error:
            raise Unexpected(what=f"{path} answered what nobody can read here: {error}") from error
