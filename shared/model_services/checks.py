"""Checks of a model service that the types of its fields do not make.

Degrees of parallelism count as distinct services, so each may have a command or an address of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from shared.kinds.places import PLACE
from shared.runtime.errors import SHOWN_CHARS

if TYPE_CHECKING:
    from shared.model_services.entries import ServiceEntry

DEGREES: Final = (1, 2, 4, 8)
PLACES: Final = ("port", "devices", "degree", "model")
"""Places in a command and in `env`: the port to listen at, GPU numbers (`0,1`), their number, and `model`."""
RESERVED: Final = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"})
"""Variables that the chunk decides."""


def check_entry(entry: ServiceEntry) -> None:
    """Check what the types of an entry's fields do not.

    Raises:
        ValueError: it cannot be used. The message says what to write.
    """
    if len(set(entry.degrees)) != len(entry.degrees) or not set(entry.degrees) <= set(DEGREES):
        raise ValueError(f"degrees: {entry.degrees} should be different numbers out of 1, 2, 4 and 8")
    _check_memory(entry)
    if (entry.api == "treadle") != (entry.backend == "torch") and entry.backend != "process":
        wanted = "treadle" if entry.backend == "torch" else "openai"
        raise ValueError(f'api: engines of the backend {entry.backend!r} have another one; write "api": "{wanted}"')
    if entry.canary is not None and entry.canary.prompt and entry.api == "treadle":
        raise ValueError(
            'canary: the API treadle completes no prompt; write {"path": "/v1/score", "body": {"inputs": ["..."]}, '
            '"pointer": "/scores/0", "expect": 0.5}'
        )
    _check_path("health", entry.health, "/health")
    _check_canary(entry)
    _check_start(entry)
    for text in entry.env.values():
        _check_places("env", text)
    if reserved := RESERVED & entry.env.keys():
        raise ValueError(f"env: remove {min(reserved)}; the chunk decides it")


def _check_canary(entry: ServiceEntry) -> None:
    canary = entry.canary
    if canary is None:
        return
    if canary.path:
        _check_path("canary.path", canary.path, "/v1/completions" if canary.prompt else "/v1/score")
    if canary.pointer and not canary.pointer.startswith("/"):
        raise ValueError(
            'canary.pointer: it should be empty or begin with "/", as "/scores/0"; empty is the whole answer'
        )


def _check_path(what: str, path: str, example: str) -> None:
    if not path.startswith("/") or not _is_plain(path):
        raise ValueError(
            f'{what}: {path[:SHOWN_CHARS]!r} should begin with "/" and have no spaces or control characters; '
            f'write it as "{example}"'
        )


def _is_plain(text: str) -> bool:
    """Return whether a text has neither spaces nor control characters, which would end it in a request."""
    return not any(each.isspace() or not each.isprintable() for each in text)


def _check_memory(entry: ServiceEntry) -> None:
    """Check that each degree has memory, and that a sleeping engine keeps less than it needs awake."""
    memory = entry.memory_gb
    for what, given in (("awake", memory.awake), ("asleep", memory.asleep), ("host", memory.host)):
        if isinstance(given, dict):
            _check_degrees(f"memory_gb.{what}", given, entry.degrees)
    for degree in entry.degrees:
        if entry.asleep_gb(degree) >= entry.awake_gb(degree):
            where = f" at degree {degree}" if isinstance(memory.awake, dict) or isinstance(memory.asleep, dict) else ""
            raise ValueError(
                f"memory_gb: `asleep` should be less than `awake`{where}: it is what a sleeping engine keeps"
            )


def _check_start(entry: ServiceEntry) -> None:
    """Check that each degree has a command or an address."""
    if entry.command is not None and entry.url is not None:
        raise ValueError(
            "it has `command` and `url`; write `command` for an engine that this node starts, or `url` for one that "
            "runs already"
        )
    if entry.command is None and entry.url is None:
        if entry.backend == "torch":
            return
        raise ValueError(
            'it has no engine; write "command": ["python3", "server.py", "--port", "{port}"], or '
            '"url": "http://127.0.0.1:8001" for an engine that runs already'
        )
    what, given = ("command", entry.command) if entry.url is None else ("url", entry.url)
    if isinstance(given, dict):
        _check_degrees(what, given, entry.degrees)
    elif what == "url" and len(entry.degrees) > 1:
        raise ValueError(
            f"url: one engine has one degree; write an address for each of {entry.degrees}: "
            f'{{"{entry.degrees[0]}": "http://127.0.0.1:8001"}}'
        )
    for degree in entry.degrees:
        if entry.url is None:
            _check_command(entry.command_of(degree) or [])
        else:
            _check_url(entry.url_of(degree))
            _check_first_gpu(entry, degree)
    if entry.url is None and entry.first_gpu is not None:
        raise ValueError("first_gpu: it belongs to `url`; engines of a `command` are started on the chunk of an action")
    if entry.url is not None and entry.backend == "process":
        raise ValueError(
            'url: the backend "process" evicts an engine by its stop, and one that runs already is not ours to stop; '
            "write `command`, or another backend"
        )


def _check_first_gpu(entry: ServiceEntry, degree: int) -> None:
    first = entry.first_gpu_of(degree)
    if first is None:
        raise ValueError(
            'first_gpu: an engine that runs already has its GPUs; write "first_gpu": 0, '
            f'or {{"{degree}": 0}} for its degrees'
        )
    if first % degree:
        raise ValueError(f"first_gpu: {first} is no multiple of {degree}; a chunk of {degree} GPUs begins at one")


def _check_degrees(what: str, given: Mapping[int, Any], degrees: list[int]) -> None:
    if without := [degree for degree in degrees if degree not in given]:
        raise ValueError(f'{what}: degree {without[0]} has none; add "{without[0]}": ... or remove it from `degrees`')
    if other := sorted(given.keys() - set(degrees)):
        raise ValueError(f"{what}: {other[0]} is not in `degrees`, {degrees}; add it there, or remove it")


def _check_command(command: list[str]) -> None:
    if not command[0]:
        raise ValueError("command: its first part is the program, and must not be empty")
    for part in command:
        _check_places("command", part)
    if not any("{port}" in part for part in command):
        raise ValueError('command: no part has {port}, the port at which the engine listens; write "--port", "{port}"')


def _check_places(what: str, text: str) -> None:
    if unknown := [name for name in PLACE.findall(text) if name not in PLACES]:
        listed = ", ".join(f"{{{name}}}" for name in PLACES)
        raise ValueError(f"{what}: the place {{{unknown[0][:SHOWN_CHARS]}}} is unknown; there are {listed}")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        host.encode("idna")  # as the system's resolver does
        valid = parts.scheme in ("http", "https") and host and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    is_plain = url.isascii() and _is_plain(url) and "\\" not in url
    if not valid or not is_plain or parts.query or parts.fragment or parts.username is not None:
        raise ValueError("url: it is no base address; write one as http://127.0.0.1:8001")  # it may have a password
