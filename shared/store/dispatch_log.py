"""A dispatcher's stimulus log: its inputs and commands, so that its decisions can be made again elsewhere.

A log is a folder of segments, each a file that is complete by itself. A segment is a sequence of msgpack values, each
after its length (4 bytes, little-endian): the header (configuration, and the dispatcher's state if the segment does
not begin with a term), then `[now, [[kind, stimulus], ...], commands]` for each call of `Dispatcher.handle`. The
commands are null if the call raised, and a number if only that was kept. `treadle replay dispatch FILE` makes the
decisions again and compares.

The state is a pickle. It is read with an allow-list: classes and functions that `shared.policy` defines, and
containers. Outputs of actions are left out: the policy does not read them, and they belong to the tenants.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, get_args

import msgspec
from msgspec.structs import replace

from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import AttemptsEnded, Stimulus
from shared.policy.model.formulation import Command
from shared.policy.model.results import EMPTY
from shared.policy.resources.resource import Specs
from shared.runtime.validation import UNREADABLE

KINDS: Final[Mapping[str, type[Stimulus]]] = {kind.__name__: kind for kind in get_args(Stimulus)}
VERSION: Final = 13
"""Version of the log. Raise it with any change of `DispatchConfig`, of a stimulus, of a command or of the state."""
NAME: Final = "dispatch"
"""Prefix of the files' names."""

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()

_ALLOWED: Final = frozenset(
    {("builtins", "set"), ("builtins", "frozenset"), ("collections", "deque"), ("collections", "defaultdict"),
     ("collections", "Counter"), ("collections", "OrderedDict"), ("numpy", "ndarray"), ("numpy", "dtype"),
     ("numpy._core.multiarray", "_reconstruct"), ("numpy._core.numeric", "_frombuffer"),
     ("numpy.core.multiarray", "_reconstruct"), ("numpy.core.numeric", "_frombuffer"), ("builtins", "list"),
     ("builtins", "dict"), ("builtins", "int"), ("builtins", "float"), ("copyreg", "_reconstructor"),
     ("builtins", "object")}
)  # fmt: skip
"""Names that a pickled state may use beside those of `shared.policy`."""


class DispatchLogError(ValueError):
    """A file is no segment of a dispatcher's log, or is of another version."""


class HandledCall(NamedTuple):
    """One call of `Dispatcher.handle`."""

    now: float
    given: tuple[Stimulus, ...]
    commands: Sequence[Command] | int | None
    """None: the call raised. A number: only the number of commands was kept."""


class DispatchLogHeader(msgspec.Struct, frozen=True):
    """First value of a segment."""

    version: int
    epoch: int
    """Epoch of the leader."""
    config: DispatchConfig
    state: bytes
    """Empty: the segment begins with the term."""

    def dispatcher(self, specs: Specs) -> Dispatcher:
        """Return a dispatcher in the state at the segment's begin.

        Raises:
            DispatchLogError: the state is of another version, or names what it must not.
        """
        if not self.state:
            return Dispatcher(self.config, specs)
        try:
            return Dispatcher.of_parts(_StateReader(io.BytesIO(self.state)).load())
        except (pickle.UnpicklingError, AttributeError, TypeError, EOFError, ImportError) as error:
            raise DispatchLogError(f"its state is of another version of Treadle: {error}") from error


class _StateReader(pickle.Unpickler):
    """Reads the state of a dispatcher and nothing else: a log may come from elsewhere."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what the state names. A name with dots, or one that a module of the policy only imports, would reach
        the whole standard library.
        """
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if module.startswith("shared.policy.") and "." not in name:
            found = super().find_class(module, name)
            if getattr(found, "__module__", None) == module:
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a dispatcher's state")


def state_of(dispatcher: Dispatcher) -> bytes:
    """Return the state of a dispatcher. O(unanswered): about 25 us an action."""
    return pickle.dumps(dispatcher.parts(), protocol=5)


def to_builtins(commands: Sequence[Command]) -> list[Any]:
    """Return commands in the log's form, for comparison."""
    read: list[Any] = msgspec.msgpack.decode(_encoder.encode([[type(one).__name__, one] for one in commands]))
    return read


class DispatchLogSegment:
    """One file of a log, open for writing. Not safe for concurrent use."""

    def __init__(self, path: Path, epoch: int, config: DispatchConfig, state: bytes) -> None:
        """Begin a file; an existing one is replaced.

        Raises:
            OSError: it cannot be written.
        """
        self.path = path
        self._file: BinaryIO = path.open("wb")
        self._write(_framed(DispatchLogHeader(VERSION, epoch, config, state)))
        self.size = 0
        """Bytes of the calls."""

    def write(self, calls: Sequence[HandledCall]) -> None:
        """Write calls, in order.

        Raises:
            OSError: they cannot be written.
        """
        packed = b"".join(_framed(_entry(call)) for call in calls)
        self._write(packed)
        self.size += len(packed)

    def keep(self, path: Path) -> Path:
        """End the segment, as a file with this path. Returns the path.

        Raises:
            OSError: it cannot be written.
        """
        self._file.close()
        self.path.rename(path)
        return path

    def close(self) -> None:
        self._file.close()

    def _write(self, packed: bytes) -> None:
        self._file.write(packed)
        self._file.flush()


def _framed(value: Any) -> bytes:
    packed = _encoder.encode(value)
    return _LENGTH.pack(len(packed)) + packed


def _entry(call: HandledCall) -> tuple[Any, ...]:
    kept = call.commands
    commands = kept if kept is None or isinstance(kept, int) else [(type(one).__name__, one) for one in kept]
    return (call.now, [(type(one).__name__, _without_outputs(one)) for one in call.given], commands)


def _without_outputs(stimulus: Stimulus) -> Any:
    """Return what is encoded of a stimulus."""
    if type(stimulus) is not AttemptsEnded:
        return stimulus
    return {"ends": [replace(end, result=replace(end.result, output=EMPTY)) for end in stimulus.ends]}


@dataclass(frozen=True)
class LoggedCall:
    """One call of `Dispatcher.handle` as a log has it."""

    now: float
    given: tuple[Stimulus, ...]
    commands: list[Any] | int | None
    """As builtins, see `to_builtins`; None: the call raised; a number: only the number of commands was kept."""


class DispatchLogReader:
    """A segment, open for reading."""

    def __init__(self, path: Path) -> None:
        """Read the header.

        Raises:
            DispatchLogError: it is no segment of this version.
            OSError: it cannot be opened.
        """
        self.path = path
        self._packed = path.read_bytes()
        self._at = 0
        self.torn = 0
        """Bytes at the end that hold no complete value, after the calls were read."""
        header = self._next()
        try:
            version = msgspec.msgpack.decode(header or b"", type=_Version).version
            if version != VERSION:
                raise DispatchLogError(f"{path} has version {version}; this Treadle reads version {VERSION}")
            self.header = msgspec.msgpack.decode(header or b"", type=DispatchLogHeader)
        except UNREADABLE as error:
            raise DispatchLogError(f"{path} is no log of a dispatcher of this version of Treadle") from error

    def calls(self) -> Iterator[LoggedCall]:
        """Yield the calls. A value that was cut off by a crash ends them.

        Raises:
            DispatchLogError: a stimulus is unknown to this version.
        """
        entry = msgspec.msgpack.Decoder(tuple[float, list[tuple[str, msgspec.Raw]], list[Any] | int | None])
        while (packed := self._next()) is not None:
            try:
                now, given, commands = entry.decode(packed)
                stimuli = tuple(_decoder(kind).decode(raw) for kind, raw in given)
            except (KeyError, *UNREADABLE) as error:
                raise DispatchLogError(f"{self.path} holds a stimulus of another version: {error}") from error
            yield LoggedCall(now, stimuli, commands)

    def _next(self) -> bytes | None:
        begin = self._at + _LENGTH.size
        if begin <= len(self._packed):
            (length,) = _LENGTH.unpack_from(self._packed, self._at)
            if begin + length <= len(self._packed):
                self._at = begin + length
                return self._packed[begin : self._at]
        self.torn = len(self._packed) - self._at
        return None


class _Version(msgspec.Struct):
    """The part of a header that every version of the log has."""

    version: int


_decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}


def _decoder(kind: str) -> msgspec.msgpack.Decoder[Any]:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(KINDS[kind])
    return decoder
