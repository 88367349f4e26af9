"""Plans: what runs inside, in order, and what is compared outside, in order."""

from __future__ import annotations

import marshal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from services.cpu_manager.graders.splitting.values import MOST_DEPTH, PlainDict, PlainSet, Stream

MOST_INSTRUCTIONS: Final = 20_000
MOST_OPERATIONS: Final = 10_000
"""Of one assertion, outside the sandbox."""
_DEEPEST: Final = 100
"""Operations inside each other, outside the sandbox."""


class UnsplittableError(Exception):
    """The text does not have the form, so it runs in one interpreter with the program."""


@dataclass(frozen=True, slots=True)
class Register:
    """An object of the program's interpreter, by the instruction that makes it."""

    index: int


@dataclass(frozen=True, slots=True)
class Sent:
    """The plain data of a register, as they arrived outside."""

    index: int


@dataclass(frozen=True, slots=True)
class Later:
    """An operation on results, applied outside. Operands are plain data, `Sent` or `Later`."""

    operation: Callable[..., Any]
    operands: tuple[Any, ...]
    depth: int
    size: int
    """Operations in it; one that stands in several places is applied as often."""

    @classmethod
    def of(cls, operation: Callable[..., Any], operands: tuple[Any, ...]) -> Later:
        """Raises UnsplittableError where there are too many operations, or nested too deeply."""
        inner = [one for one in operands if isinstance(one, Later)]
        depth = 1 + max((one.depth for one in inner), default=0)
        size = 1 + len(operands) + sum(one.size for one in inner)
        if depth > _DEEPEST or size > MOST_OPERATIONS:
            raise UnsplittableError("too many operations")
        return cls(operation, operands, depth, size)


@dataclass(frozen=True, slots=True)
class Check:
    """One assertion: `test` must be true."""

    test: Any
    line: int
    """In the text of the tests, from 1."""
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One text of tests, split."""

    payload: bytes
    """The instructions, marshalled: no expected value is among them."""
    events: tuple[Sent | Check, ...]
    """In the order of the text. A result stands where its call returned."""


@dataclass(slots=True)
class Recorder:
    """Collects instructions and events while the text is read."""

    instructions: list[tuple[Any, ...]] = field(default_factory=list)
    _events: list[Register | Check] = field(default_factory=list)
    _used: set[int] = field(default_factory=set)
    _touched: set[int] = field(default_factory=set)
    _exposed: dict[int, Any] = field(default_factory=dict)

    def add(self, *instruction: Any) -> Register:
        """Record one instruction. Its result gets the next register."""
        if len(self.instructions) >= MOST_INSTRUCTIONS:
            raise UnsplittableError("too many calls")
        register = Register(len(self.instructions))
        self.instructions.append(instruction)
        self._events.append(register)
        return register

    def attribute(self, base: Register, name: str) -> Register:
        """`base.name`. The object may change with every method, so it cannot be sent afterwards."""
        self._touched.add(base.index)
        return self.add("attribute", base.index, name)

    def call(self, function: Register, arguments: list[Any], keywords: dict[str, Any]) -> Register:
        """A call. Arguments are plain data or registers; each mutable object may stand among them once."""
        seen: set[int] = set()
        packed = [self._packed(argument, seen, 0) for argument in arguments]
        named = [(name, self._packed(argument, seen, 0)) for name, argument in keywords.items()]
        return self.add("call", function.index, packed, named)

    def item(self, base: Register, index: Any) -> Register:
        """`base[index]`: asked inside, as a program's own kind of mapping may have a default."""
        if isinstance(index, slice):
            return self.add("item", base.index, ("|", [index.start, index.stop, index.step]))
        return self.add("item", base.index, self._packed(index, set(), 0))

    def use(self, register: Register) -> Sent:
        """The register's data outside, as they were when its instruction returned."""
        if register.index in self._touched:
            raise UnsplittableError("the object may have changed since it was made")
        self._used.add(register.index)
        return Sent(register.index)

    def check(self, test: Any, line: int, message: str) -> None:
        """Record an assertion."""
        self._events.append(Check(test, line, message))

    @property
    def has_exposed(self) -> bool:
        """Some mutable constant was an argument."""
        return bool(self._exposed)

    def is_exposed(self, value: Any) -> bool:
        """A function of the program has had this very object in its hands, and may have changed it."""
        return id(value) in self._exposed

    def plan(self) -> Plan:
        """The plan.

        Raises:
            UnsplittableError: no assertion depends on a result, so there would be nothing to compare outside.
        """
        if not self._used or not any(isinstance(event, Check) for event in self._events):
            raise UnsplittableError("no assertion depends on a result")
        sends = sorted(self._used)
        events: list[Sent | Check] = []
        for event in self._events:
            if isinstance(event, Check):
                events.append(event)
            elif event.index in self._used:
                events.append(Sent(event.index))
        return Plan(payload=marshal.dumps((self.instructions, sends)), events=tuple(events))

    def _packed(self, value: Any, seen: set[int], depth: int) -> Any:
        if depth > MOST_DEPTH:
            raise UnsplittableError("nested too deeply")
        if isinstance(value, Register):
            self._touched.add(value.index)
            return ("$", value.index)
        if isinstance(value, Stream):
            raise UnsplittableError("an argument is not plain data")
        if value is None or type(value) in (bool, int, float, complex, str, bytes):
            return value
        if isinstance(value, list | PlainSet | PlainDict):
            if id(value) in seen:
                raise UnsplittableError("one object stands twice among the arguments")
            seen.add(id(value))
            self._exposed[id(value)] = value
        if isinstance(value, list | tuple):
            return ("[" if isinstance(value, list) else "(", [self._packed(one, seen, depth + 1) for one in value])
        if isinstance(value, PlainSet):
            return ("f" if value.frozen else "{", [self._packed(one, seen, depth + 1) for one in value])
        if isinstance(value, PlainDict):
            pairs = value.items()
            return (":", [(self._packed(k, seen, depth + 1), self._packed(v, seen, depth + 1)) for k, v in pairs])
        raise UnsplittableError("an argument is not plain data")
