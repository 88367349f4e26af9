"""The routes of SWE-ReX's server, under a trajectory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from services.proxy.http.asgi import HotRoute
from services.proxy.http.call import Call
from services.proxy.http.replies import Reply
from services.proxy.http.swerex.acting import request_id
from services.proxy.http.swerex.files import execute, read_file, upload, write_file
from services.proxy.http.swerex.forms import Raised, swerex_error
from services.proxy.http.swerex.sessions import close_session, create_session, run_in_session
from services.proxy.http.trajectories import named
from shared.runtime.errors import Conflict, NotFound

_encoder = msgspec.json.Encoder()

Verb = Callable[[Call, str], Awaitable[dict[str, Any]]]


def _route(verb: str, run: Verb, method: str = "POST") -> HotRoute:
    async def handle(call: Call) -> Reply:
        call.query()
        request_id(call)
        try:
            return Reply(200, _encoder.encode(await run(call, named(call))))
        except Raised as error:
            return error.reply()
        except (Conflict, NotFound) as error:  # the client shows an exception it raises, and little of other statuses
            return swerex_error("SwerexException", str(error)).reply()

    return HotRoute(method, f"/v1/trajectories/{{trajectory}}/swerex/{verb}", handle)


async def is_alive(call: Call, trajectory: str) -> dict[str, Any]:
    """Return whether the trajectory is open. Creates no environment."""
    view = await call.proxy.trajectories.view(trajectory)
    alive = view.state == "open"
    return {"is_alive": alive, "message": "" if alive else f"trajectory {trajectory} is {view.state}: {view.reason}"}


async def close(call: Call, trajectory: str) -> dict[str, Any]:
    """Close the trajectory."""
    await call.body(call.proxy.settings.max_body_bytes)
    await call.proxy.trajectories.close(trajectory)
    return {}


SWEREX_ROUTES = [
    _route("is_alive", is_alive, "GET"),
    _route("create_session", create_session),
    _route("run_in_session", run_in_session),
    _route("close_session", close_session),
    _route("execute", execute),
    _route("read_file", read_file),
    _route("write_file", write_file),
    _route("upload", upload),
    _route("close", close),
]
