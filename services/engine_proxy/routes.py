"""The complete list of calls that pass the engine proxy. All others are rejected.

A path has only characters that stand for themselves (nothing is percent-decoded), after an API version. A query has
only the names that its call allows, each once. The proxy writes both again for the engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode

import msgspec

from services.engine_proxy.bodies import NODE_LABEL, EmptyBody, NewContainer, NewExec, Resources, StartExec
from services.engine_proxy.http1 import Rejected

OLDEST_API = 40
"""1.40 is Docker 19.03's. Very old versions accept bodies that newer ones do not (`start` with a HostConfig)."""

Body = type[msgspec.Struct] | Literal["archive"]

_SUBJECTS: Mapping[str, str] = {
    "container": r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}",
    "exec": r"[0-9a-f]{64}",
    "volume": r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}",
    "image": r"[A-Za-z0-9][A-Za-z0-9._:@-]*(?:/[A-Za-z0-9][A-Za-z0-9._:@-]*)*",
}
_BOOLEAN = "(?i:true|false|1|0)"
_NUMBER = "[0-9]{1,9}"
_SIGNAL = "[A-Z0-9+-]{1,16}"
_WITHIN = "/[^\0]*"
_STREAMS = dict.fromkeys(("stream", "stdin", "stdout", "stderr", "logs"), _BOOLEAN)


@dataclass(frozen=True, slots=True)
class Route:
    """One entry of the list."""

    method: str
    path: str
    """With `{container}`, `{exec}`, `{volume}` or `{image}` for a name. All of these but images must be ours."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Name -> pattern of its value."""
    body: Body = EmptyBody
    streams: bool = False
    """The caller may take over the connection, to write to the process's standard input."""
    lists: bool = False
    """It lists containers. Only ours are listed, whatever the filters."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


ROUTES = (
    Route("GET", "/_ping"),
    Route("HEAD", "/_ping"),
    Route("GET", "/version"),
    Route("GET", "/info"),
    Route("GET", "/images/json"),
    Route("GET", "/images/{image}/json"),
    Route("DELETE", "/images/{image}"),
    Route("POST", "/images/create", {"fromImage": _SUBJECTS["image"], "tag": r"[A-Za-z0-9_.:-]*"}),
    Route("GET", "/containers/json", {"all": _BOOLEAN, "limit": _NUMBER, "filters": ".*"}, lists=True),
    Route("POST", "/containers/create", {"name": _SUBJECTS["container"]}, NewContainer),
    Route("GET", "/containers/{container}/json", {"size": _BOOLEAN}),
    Route("POST", "/containers/{container}/start"),
    Route("POST", "/containers/{container}/stop", {"t": _NUMBER, "signal": _SIGNAL}),
    Route("POST", "/containers/{container}/kill", {"signal": _SIGNAL}),
    Route("POST", "/containers/{container}/wait", {"condition": "not-running|next-exit|removed"}),
    Route("POST", "/containers/{container}/pause"),
    Route("POST", "/containers/{container}/unpause"),
    Route("POST", "/containers/{container}/update", body=Resources),
    Route(
        "GET",
        "/containers/{container}/logs",
        {"stdout": _BOOLEAN, "stderr": _BOOLEAN, "follow": _BOOLEAN, "tail": f"all|{_NUMBER}"},
    ),
    Route("DELETE", "/containers/{container}", {"force": _BOOLEAN, "v": _BOOLEAN}),
    Route("GET", "/containers/{container}/archive", {"path": _WITHIN}),
    Route("HEAD", "/containers/{container}/archive", {"path": _WITHIN}),
    Route(
        "PUT",
        "/containers/{container}/archive",
        {"path": _WITHIN, "noOverwriteDirNonDir": _BOOLEAN, "copyUIDGID": _BOOLEAN},
        "archive",
    ),
    Route("POST", "/containers/{container}/attach", _STREAMS, streams=True),
    Route("POST", "/containers/{container}/exec", body=NewExec),
    Route("POST", "/exec/{exec}/start", body=StartExec, streams=True),
    Route("GET", "/exec/{exec}/json"),
    Route("DELETE", "/volumes/{volume}", {"force": _BOOLEAN}),
)


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A listed call, as it is sent to the engine."""

    route: Route
    version: str
    """`/v1.41`, or empty."""
    names: Mapping[str, str]
    """Values of the names in braces."""
    query: Mapping[str, str]

    def target(self, container: str | None) -> str:
        """Return the engine's path and query. `container`: full id of the container that the call names."""
        names = self.names if container is None else {**self.names, "container": container}
        path = self.version + self.route.path.format_map(dict(names))
        return f"{path}?{urlencode(self.query)}" if self.query else path


def parse_call(method: str, target: str, node: str) -> EngineCall:
    """Return the listed call for this request.

    Raises:
        Rejected: it is not on the list. The message has the list.
    """
    path, _, query = target.partition("?")
    versioned = re.fullmatch(r"(/v1\.([0-9]{1,3}))?(/.*)", path)
    if versioned is None or (versioned[2] and int(versioned[2]) < OLDEST_API):
        raise Rejected(403, f"the engine proxy passes version 1.{OLDEST_API} of the engine's API and newer")
    for route in ROUTES:
        if route.method == method and (named := _pattern(route).fullmatch(versioned[3])):
            known = _query(route, query)
            if route.lists:
                known["filters"] = _with_own_label(known.get("filters", "{}"), node)
            return EngineCall(route, versioned[1] or "", named.groupdict(), known)
    raise Rejected(403, f"{method} {path} does not pass the engine proxy; allowed: {', '.join(map(str, ROUTES))}")


def _pattern(route: Route) -> re.Pattern[str]:
    pattern = re.escape(route.path)
    for name, subject in _SUBJECTS.items():
        pattern = pattern.replace(re.escape(f"{{{name}}}"), f"(?P<{name}>{subject})")
    return re.compile(pattern, re.ASCII)


def _query(route: Route, query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict") if query else []
    except ValueError as error:
        raise Rejected(400, f"the query cannot be read: {error}") from None
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Rejected(400, "a name comes twice in the query")
    for name, value in found.items():
        if name not in route.query or not re.fullmatch(route.query[name], value, re.ASCII | re.DOTALL):
            known = ", ".join(route.query) or "nothing"
            raise Rejected(403, f"{name}={value[:80]} does not pass the engine proxy; {route} allows {known}")
    return found


def _with_own_label(filters: str, node: str) -> str:
    """Add our label to a listing's filters. The engine lists containers that have all labels."""
    try:
        asked: dict[str, list[str] | dict[str, Any]] = msgspec.convert(
            json.loads(filters), dict[Literal["label", "status", "id", "name"], list[str] | dict[str, Literal[True]]]
        )
    except (ValueError, RecursionError) as error:
        raise Rejected(403, f"filters: {error}; allowed: label, status, id, name, each a list") from None
    lists = {name: list(values) for name, values in asked.items()}
    lists["label"] = [*lists.get("label", []), f"{NODE_LABEL}={node}"]
    return json.dumps(lists)
