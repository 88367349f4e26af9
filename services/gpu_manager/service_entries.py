"""Model services of one node: the operator's file `GPU_MANAGER_SERVICES`, a JSON object of name -> entry, and REST.

    {"judge-a": {"backend": "process", "api": "openai", "model": "judge-a",
                 "command": ["python3", "server.py", "--port", "{port}"], "health": "/health", "degrees": [1],
                 "memory_gb": {"awake": 16, "asleep": 0}, "concurrency": 1,
                 "canary": {"prompt": "2+2=", "expect": "4"}, "priority": 0, "min_residency_s": 5}}

Law: a command runs on this host with the rights of the service. So it comes from the file, and REST names an entry of
the file. Only if the operator allows commands, REST may have a whole entry.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from services.gpu_manager.backends.protocol import EngineCanary
from services.gpu_manager.engine_calls import Api
from services.gpu_manager.entry_checks import check_entry
from shared.kinds.formulation import Name
from shared.messages.environments import Value, Variable
from shared.runtime.errors import SHOWN_CHARS, BadRequest
from shared.runtime.patterns import is_name
from shared.runtime.settings import WrongSetting
from shared.runtime.validation import UNREADABLE, decoded, explain

SETTING: Final = "GPU_MANAGER_SERVICES"
MOST_BYTES: Final = 4 << 20
"""Largest file of entries."""
MOST_SERVICES: Final = 256
MOST_LISTED: Final = 16
"""Names of entries in a message."""
EXAMPLES: Final[Mapping[str, str]] = {
    "backend": '"backend": "process"; there are process, vllm, sglang and torch',
    "model": '"model": "judge-a", the name of the model in calls',
    "memory_gb": '"memory_gb": {"awake": 16, "asleep": 0}, in GB of each GPU',
    "memory_gb.awake": '"memory_gb": {"awake": 16}, in GB of each GPU',
}
"""Required field -> what to write."""
MOST_PARTS: Final = 256
"""Parts of a command."""
Command = Annotated[
    list[Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$", max_length=65_536)]],
    msgspec.Meta(min_length=1, max_length=MOST_PARTS),
]
Url = Annotated[str, msgspec.Meta(min_length=8, max_length=2048)]
Gigabytes = Annotated[float, msgspec.Meta(ge=0, le=1 << 20)]
Priority = Annotated[int, msgspec.Meta(ge=-1000, le=1000)]
Residence = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
FirstGpu = Annotated[int, msgspec.Meta(ge=0, lt=64)]
Concurrency = Annotated[int, msgspec.Meta(ge=1, le=4096)]


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory of one engine, in GB of 2^30 bytes."""

    awake: Annotated[float, msgspec.Meta(gt=0, le=1 << 20)]
    """Device memory of each GPU while it is resident."""
    asleep: Gigabytes = 0.0
    """Device memory of each GPU that a sleeping engine keeps: 1 to 7 GB with vLLM."""
    host: Gigabytes | None = None
    """Host memory of a sleeping engine that keeps its weights there. Null: `awake` times the degree."""


class ServiceEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model service."""

    backend: Literal["process", "vllm", "sglang", "torch"]
    api: Api = "openai"
    """API of the engine: `treadle` is that of our server for reward models, of the backend `torch`."""
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    """Name of the model in calls; with the backend `torch`, the folder of its files."""
    command: Command | dict[int, Command] | None = None
    """Command that starts an engine, or degree -> command. Null: an engine that runs already (`url`); with the backend
    `torch`, our own server."""
    url: Url | dict[int, Url] | None = None
    """Base address of an engine that runs already, or degree -> address. Its GPUs begin at `first_gpu`."""
    first_gpu: FirstGpu | dict[int, FirstGpu] | None = None
    """With `url`: number of the engine's first GPU, or degree -> number. It is a multiple of the degree."""
    health: Annotated[str, msgspec.Meta(pattern="^/", max_length=256)] = "/health"
    """Path that answers 200 when a started engine serves."""
    degrees: Annotated[list[int], msgspec.Meta(min_length=1, max_length=4)] = msgspec.field(default_factory=lambda: [1])
    """Degrees of parallelism: numbers of GPUs that one engine may use."""
    memory_gb: MemoryNeed
    concurrency: Concurrency = 1
    """Actions that one engine executes at the same time."""
    canary: EngineCanary | None = None
    """Request with a known answer, sent after each restore. Null: none, so wrong weights are not noticed."""
    priority: Priority = 0
    """Services of a lower number are evicted later."""
    min_residency_s: Residence = 5.0
    """Seconds for which it is not evicted after it has become resident."""
    start_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 600.0
    """Limit of a start, until it is healthy."""
    env: Annotated[dict[Variable, Value], msgspec.Meta(max_length=256)] = {}
    """Variables of its process, with the same places as the command."""

    def command_of(self, degree: int) -> list[str] | None:
        """Return the command of a degree, with its places; None if there is none."""
        return self.command.get(degree) if isinstance(self.command, dict) else self.command

    def url_of(self, degree: int) -> str:
        """Return the address of an engine that runs already, without a slash at its end; empty if there is none."""
        found = self.url.get(degree) if isinstance(self.url, dict) else self.url
        return (found or "").rstrip("/")

    def first_gpu_of(self, degree: int) -> int | None:
        """Return the first GPU of an engine that runs already; None if engines of this degree may be on any chunk."""
        return self.first_gpu.get(degree) if isinstance(self.first_gpu, dict) else self.first_gpu

    def host_gb(self, degree: int) -> float:
        """Return the host memory of a sleeping engine that keeps its weights there."""
        return self.memory_gb.awake * degree if self.memory_gb.host is None else self.memory_gb.host


class WrongEntries(WrongSetting):
    """The file of services cannot be used, so the service does not start. The message names the entry."""


class ServiceReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model service over REST: an entry of the operator's file, and what may differ from it."""

    entry: Name
    priority: Priority | None = None
    min_residency_s: Residence | None = None
    concurrency: Concurrency | None = None


_entries: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entry: Final = msgspec.json.Decoder(ServiceEntry)
_reference: Final = msgspec.json.Decoder(ServiceReference)


def load_entries(path: Path | None) -> dict[str, ServiceEntry]:
    """Return the entries of the operator's file; none without a file.

    Raises:
        WrongEntries: the file cannot be read, or an entry cannot be used.
    """
    if path is None:
        return {}
    where = f"{SETTING}: {path}"
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise WrongEntries(f"{where} is no file")
            if mode & stat.S_IWOTH:
                raise WrongEntries(f"{where} has commands, and every account may change it: run `chmod o-w {path}`")
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise WrongEntries(f"{where} cannot be read ({error.strerror})") from None
    if len(content) > MOST_BYTES:
        raise WrongEntries(f"{where} is larger than {MOST_BYTES} bytes")
    try:
        return read_entries(content)
    except ValueError as error:
        raise WrongEntries(f"{where}: {error}") from None


def read_entries(content: bytes) -> dict[str, ServiceEntry]:
    """Return the entries of a file's content.

    Raises:
        ValueError: it is no JSON object of entries, or an entry cannot be used. The message names the entry.
    """
    try:
        raw = _entries.decode(content)
    except UNREADABLE as error:
        raise ValueError(f'it is no JSON object of entries, {{"judge-a": {{"backend": ...}}}}: {error}') from error
    if len(raw) > MOST_SERVICES:
        raise ValueError(f"it has {len(raw)} entries; the most are {MOST_SERVICES}")
    return {name: _read_entry(name, each) for name, each in raw.items()}


def _read_entry(name: str, raw: msgspec.Raw) -> ServiceEntry:
    where = f"entry {name[:SHOWN_CHARS]!r}"
    if not is_name(name):
        raise ValueError(f"{where}: its name should be letters, digits, '.', '_' and '-', at most 64")
    try:
        entry = _entry.decode(raw)
        check_entry(entry)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {_with_example(explain(error, ServiceEntry))}") from error
    except UNREADABLE as error:
        raise ValueError(f"{where}: it is no JSON object: {error}") from error
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return entry


def _with_example(sentence: str) -> str:
    path, _, missing = sentence.rpartition("missing field `")
    if not missing:
        return sentence
    field = f"{path.removesuffix(': ')}.{missing.rstrip('`')}".lstrip(".")
    return f"{sentence}; write {EXAMPLES[field]}" if field in EXAMPLES else sentence


def requested_entry(body: bytes, entries: Mapping[str, ServiceEntry], *, allow_commands: bool) -> ServiceEntry:
    """Return the service of a `PUT /v1/services/{name}`.

    Args:
        body: {"entry": "judge-a", "priority": 1}, or a whole entry.
        entries: of the operator's file.
        allow_commands: whether a whole entry is allowed (`GPU_MANAGER_ALLOW_COMMANDS`).

    Raises:
        BadRequest: it names no entry, or is a whole one and must not be, or cannot be used.
    """
    fields = decoded(_entries, body)
    if "entry" not in fields and not allow_commands:
        raise BadRequest(
            what='an entry over REST names one of this node\'s file: {"entry": "judge-a"}; the entries are '
            f"{_listed(entries)}. A command is accepted if the operator sets GPU_MANAGER_ALLOW_COMMANDS=true"
        )
    if "entry" not in fields:
        entry = decoded(_entry, body)
        try:
            check_entry(entry)
        except ValueError as error:
            raise BadRequest(what=str(error)) from error
        return entry
    reference = decoded(_reference, body)
    found = entries.get(reference.entry)
    if found is None:
        raise BadRequest(what=f"entry: {reference.entry!r} is not in {SETTING}; the entries are {_listed(entries)}")
    given = {name: value for name in ("priority", "min_residency_s", "concurrency")
             if (value := getattr(reference, name)) is not None}  # fmt: skip
    return msgspec.structs.replace(found, **given)


def _listed(entries: Mapping[str, ServiceEntry]) -> str:
    return ", ".join(sorted(entries)[:MOST_LISTED]) or "none"
