"""Model services as declared: fields of an entry, and their reading.

    {"judge-a": {"backend": "process", "api": "openai", "model": "judge-a",
                 "command": ["python3", "server.py", "--port", "{port}"], "health": "/health", "degrees": [1],
                 "memory_gb": {"awake": 16, "asleep": 0}, "concurrency": 1,
                 "canary": {"prompt": "2+2=", "expect": "4"}, "priority": 0, "min_residency_s": 5}}

Law: a command runs on the host of a GPU manager with the manager's rights. So it comes from the operator's file. Only
if the operator allows commands, a whole entry may come over REST; otherwise REST refers to an entry (`references`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from shared.messages.environments import Value, Variable
from shared.model_services.checks import check_entry
from shared.runtime.errors import SHOWN_CHARS
from shared.runtime.patterns import NAME, PATH, is_name, words
from shared.runtime.validation import UNREADABLE, explain

MOST_SERVICES: Final = 256
"""Most entries of a file, and most services of the mesh."""
EXAMPLES: Final[Mapping[str, str]] = {
    "backend": '"backend": "process"; there are process, vllm, sglang and torch',
    "model": '"model": "judge-a", the name of the model in calls',
    "memory_gb": '"memory_gb": {"awake": 16, "asleep": 0}, in GB of each GPU',
    "memory_gb.awake": '"memory_gb": {"awake": 16}, in GB of each GPU, or {"awake": {"1": 30, "2": 16}} by degree',
}
"""Required field -> what to write."""
MOST_PROBLEM: Final = 512
"""Characters of the text about a wrong entry."""
MOST_PARTS: Final = 256
"""Parts of a command."""
Command = Annotated[
    list[Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$", max_length=65_536)]],
    msgspec.Meta(min_length=1, max_length=MOST_PARTS),
]
Url = Annotated[str, msgspec.Meta(min_length=8, max_length=2048)]
Gigabytes = Annotated[float, msgspec.Meta(ge=0, le=1 << 20)]
AwakeGigabytes = Annotated[float, msgspec.Meta(gt=0, le=1 << 20)]
Priority = Annotated[int, msgspec.Meta(ge=-1000, le=1000)]
Residence = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
FirstGpu = Annotated[int, msgspec.Meta(ge=0, lt=64)]
Concurrency = Annotated[int, msgspec.Meta(ge=1, le=4096)]
Degrees = Annotated[list[int], msgspec.Meta(min_length=1, max_length=4)]
Api = Literal["openai", "treadle"]
"""API of an engine. `openai`: chat completions, completions and embeddings, as vLLM and SGLang have them. `treadle`:
our own server for reward models."""


class EngineCanary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request with a known answer. Two forms:

    {"prompt": "2+2=", "expect": "4"}: a completion at temperature 0. Its text must contain `expect`. With `path`
    "/v1/chat/completions" it is a chat request. `body` adds fields, such as {"max_tokens": 256}.

    {"path": "/v1/score", "body": {...}, "pointer": "/scores/0", "expect": 0.83, "tolerance": 0.01}: any JSON request.
    The value at `pointer` (RFC 6901) must equal `expect`: numbers and lists of numbers within `tolerance`.
    """

    prompt: str = ""
    expect: str | float | list[float] = ""
    path: str = ""
    body: dict[str, Any] = {}
    pointer: str | None = None
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        if self.prompt:
            if not isinstance(self.expect, str) or not self.expect:
                raise ValueError("a canary with `prompt` needs a text as `expect`, such as '4'")
            if self.pointer is not None:
                raise ValueError("a canary has `prompt` or `pointer`, not both")
        elif not self.path.startswith("/") or self.pointer is None:
            raise ValueError(
                "a canary needs `prompt` and `expect`, or `path` (such as '/v1/score'), `body`, `pointer` and `expect`"
            )
        elif self.expect == "":
            raise ValueError("a canary needs `expect`: the value at `pointer`")
        if not self.tolerance >= 0:
            raise ValueError("`tolerance` must be at least 0")


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory of one engine, in GB of 2^30 bytes: a number for all degrees, or degree -> number."""

    awake: AwakeGigabytes | dict[int, AwakeGigabytes]
    """Device memory of each GPU while it is resident."""
    asleep: Gigabytes | dict[int, Gigabytes] = 0.0
    """Device memory of each GPU that a sleeping engine keeps: 1 to 7 GB with vLLM."""
    host: Gigabytes | dict[int, Gigabytes] | None = None
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
    health: Annotated[str, msgspec.Meta(pattern=PATH, max_length=256)] = "/health"
    """Path that answers 200 when a started engine serves."""
    degrees: Degrees = msgspec.field(default_factory=lambda: [1])
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
    keep_connections: bool = False
    """Keep connections to its engines between calls. For a server that serves many connections at once and sends small
    packets at once (TCP_NODELAY), as asynchronous servers do. The backends beside `process` always keep them."""
    start_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 600.0
    """Limit of a start, until it is healthy."""
    load_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 60.0
    """Expected seconds of a load until one was measured. One that takes twice as long ends if other work waits for its
    GPUs."""
    env: Annotated[dict[Variable, Value], msgspec.Meta(max_length=256)] = {}
    """Variables of its process, with the same places as the command."""

    @property
    def keeps_connections(self) -> bool:
        """True if connections to its engines are kept between calls."""
        return self.keep_connections or self.backend != "process"

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

    def awake_gb(self, degree: int) -> float:
        """Return the device memory of each GPU that a resident engine needs."""
        return _at(self.memory_gb.awake, degree)

    def asleep_gb(self, degree: int) -> float:
        """Return the device memory of each GPU that a sleeping engine keeps."""
        return _at(self.memory_gb.asleep, degree)

    def host_gb(self, degree: int) -> float:
        """Return the host memory of a sleeping engine that keeps its weights there."""
        host = self.memory_gb.host
        return self.awake_gb(degree) * degree if host is None else _at(host, degree)

    @property
    def awake_gb_by(self) -> dict[int, float]:
        """Degree -> device memory of each GPU that a resident engine needs."""
        return {degree: self.awake_gb(degree) for degree in sorted(self.degrees)}


def _at(given: float | dict[int, float], degree: int) -> float:
    return given[degree] if isinstance(given, dict) else given


_entries: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entry: Final = msgspec.json.Decoder(ServiceEntry)


class FileEntries(NamedTuple):
    """Entries of a file. A wrong one stops no other."""

    entries: dict[str, ServiceEntry]
    problems: dict[str, str]
    """Wrong entry -> what is wrong, and what to write. A name that no service can have is written as one that can."""


def read_file(content: bytes) -> FileEntries:
    """Return the entries of a file's content.

    Raises:
        ValueError: it is no JSON object of entries, or has too many.
    """
    try:
        raw = _entries.decode(content)
    except UNREADABLE as error:
        raise ValueError(f'it is no JSON object of entries, {{"judge-a": {{"backend": ...}}}}: {error}') from error
    if len(raw) > MOST_SERVICES:
        raise ValueError(f"it has {len(raw)} entries; the most are {MOST_SERVICES}")
    entries, problems = dict[str, ServiceEntry](), dict[str, str]()
    for name, each in raw.items():
        if not is_name(name):
            problems[_free_name(name, {*raw, *problems})] = f"its name, {name[:SHOWN_CHARS]!r}, should be {words(NAME)}"
            continue
        try:
            entries[name] = read_entry(each)
        except ValueError as error:
            problems[name] = str(error)[:MOST_PROBLEM]
    return FileEntries(entries, problems)


def _free_name(wrong: str, taken: Collection[str]) -> str:
    """Return a name like a wrong one under which its problem is shown. O(`taken`)."""
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", wrong[:SHOWN_CHARS]).lstrip("._-") or "unnamed"
    names = (readable, *(f"{readable[:56]}-{number}" for number in range(2, MOST_SERVICES + 2)))
    return next(name for name in names if name not in taken)


def read_entries(content: bytes) -> dict[str, ServiceEntry]:
    """Return the entries of a file's content, all of which must be right.

    Raises:
        ValueError: it is no JSON object of entries, or an entry cannot be used. The message names the entry.
    """
    entries, problems = read_file(content)
    for name, problem in problems.items():
        raise ValueError(f"entry {name!r}: {problem}")
    return entries


def read_entry(raw: bytes | msgspec.Raw) -> ServiceEntry:
    """Return an entry.

    Raises:
        ValueError: it cannot be used. The message says what to write.
    """
    try:
        entry = _entry.decode(raw)
    except msgspec.ValidationError as error:
        raise ValueError(_with_example(explain(error, ServiceEntry))) from error
    except UNREADABLE as error:
        raise ValueError(f"it is no JSON object: {error}") from error
    check_entry(entry)
    return entry


def _with_example(sentence: str) -> str:
    path, _, missing = sentence.rpartition("missing field `")
    if not missing:
        return sentence
    field = f"{path.removesuffix(': ')}.{missing.rstrip('`')}".lstrip(".")
    return f"{sentence}; write {EXAMPLES[field]}" if field in EXAMPLES else sentence
