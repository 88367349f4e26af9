"""Plans: what runs inside, in order, and what is compared outside, in order."""

from __future__ import annotations

import marshal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from services.cpu_manager.graders.splitting.values import PlainDict, PlainSet

MOST_STEPS: Final = 20_000
"""Most work for one text, in steps of about 1 us: nodes read, loops unrolled; elements, and 64 characters each, of
every constant that is created, passed to the program, or compared."""
_DEEPEST: Final = 50
"""Most levels of an argument, and of nested operations."""


class UnsplittableError(Exception):
    """The text does not have the form, so it runs in one interpreter with the program."""


class StepBudget:
    """The budget of one text. All work on a text is counted here before it is done."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self, count: int = 1) -> None:
        """Raise UnsplittableError beyond MOST_STEPS."""
        if self.taken + count > MOST_STEPS:
            raise UnsplittableError("too long")
        self.taken += count

    def take_value(self, value: Any) -> None:
        """Count a constant with all its parts. A part that occurs several times counts each time."""
        waiting = [value]
        while waiting:
            one = waiting.pop()
            if isinstance(one, str | bytes):
                self.take(1 + (len(one) >> 6))
            elif isinstance(one, int):
                self.take(1 + (one.bit_length() >> 12))
            elif isinstance(one, list | tuple | PlainSet | PlainDict):
                self.take(1 + len(one))
                waiting.extend(one)
                if isinstance(one, PlainDict):
                    waiting.extend(value for _, value in one.items())
            else:
                self.take()


@dataclass(frozen=True, slots=True)
class Register:
    """An object in the program's interpreter, identified by the instruction that creates it."""

    index: int


@dataclass(frozen=True, slots=True)
class Sent:
    """The plain data of a register, as received outside."""

    index: int


@dataclass(frozen=True, slots=True)
class Later:
    """An operation on results, applied outside, once. Operands are plain data, `Sent` or `Later`."""

    operation: Callable[..., Any]
    operands: tuple[Any, ...]
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Check:
    """One assertion: `test` must be true."""

    test: Any
    line: int
    """Line in the text of the tests, from 1."""
    message: str


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The plan of one text of tests."""

    payload: bytes
    """The instructions, marshalled. They contain no expected value."""
    events: tuple[Sent | Check, ...]
    """In the order of the text."""


@dataclass(slots=True)
class Recorder:
    """Collects instructions and events while the text is read.

    Python's order is kept: an assertion consists of calls of the program, then of operations outside. A text with
    another order is not split.
    """

    steps: StepBudget
    _instructions: list[tuple[Any, ...]] = field(default_factory=list)
    _events: list[Sent | Check] = field(default_factory=list)
    _registers: int = 0
    _wanted: list[int] = field(default_factory=list)
    _current: set[int] = field(default_factory=set)
    """Registers that were sent and cannot have changed since."""
    _operated: bool = False

    def add(self, *instruction: Any) -> Register:
        """Record one instruction. Its result gets the next register."""
        self.steps.take()
        if self._operated:
            raise UnsplittableError("a call after an operation outside")
        self._current.clear()
        register = Register(self._registers)
        self._registers += 1
        self._instructions.append(instruction)
        return register

    def call(self, function: Register, arguments: list[Any], keywords: dict[str, Any]) -> Register:
        """Record a call with constants."""
        seen: set[int] = set()
        packed = [self.packed(argument, seen) for argument in arguments]
        named = [(name, self.packed(argument, seen)) for name, argument in keywords.items()]
        return self.add("call", function.index, packed, named)

    def use(self, register: Register) -> Sent:
        """Return the register's data outside, as of the last call before the next assertion."""
        if register.index not in self._wanted:
            self._wanted.append(register.index)
        return Sent(register.index)

    def later(self, operation: Callable[..., Any], *operands: Any, fallible: bool = True) -> Later:
        """Return an operation outside. After one that may raise, the assertion can make no further call."""
        depth = 1 + max((one.depth for one in operands if isinstance(one, Later)), default=0)
        if depth > _DEEPEST:
            raise UnsplittableError("nested too deeply")
        for one in operands:
            if not isinstance(one, Later | Sent):
                self.steps.take_value(one)
        self._operated = self._operated or fallible
        return Later(operation, operands, depth)

    def check(self, test: Any, line: int, message: str) -> None:
        """Record an assertion, after the results that it uses."""
        self.steps.take()
        for index in self._wanted:
            if index not in self._current:
                self._instructions.append(("send", index))
                self._events.append(Sent(index))
                self._current.add(index)
        self._wanted.clear()
        self._operated = False
        self._events.append(Check(test, line, message))

    def plan(self) -> SplitPlan:
        """Return the plan.

        Raises:
            UnsplittableError: no assertion depends on a result, so there would be nothing to compare outside.
        """
        if not any(isinstance(event, Sent) for event in self._events) or self._wanted:
            raise UnsplittableError("no assertion depends on a result")
        return SplitPlan(payload=marshal.dumps(self._instructions), events=tuple(self._events))

    def packed(self, value: Any, seen: set[int], depth: int = 0) -> Any:
        """Return a constant in the form from which the harness builds arguments."""
        if depth > _DEEPEST:
            raise UnsplittableError("nested too deeply")
        if depth == 0:
            self.steps.take_value(value)
        if value is None or type(value) in (bool, int, float, complex, str, bytes):
            return value
        if isinstance(value, list | PlainDict):
            if id(value) in seen:
                raise UnsplittableError("one object stands twice among the arguments")
            seen.add(id(value))
        if isinstance(value, list | tuple):
            return ("[" if isinstance(value, list) else "(", [self.packed(one, seen, depth + 1) for one in value])
        if isinstance(value, PlainDict):
            pairs = value.items()
            return (":", [(self.packed(k, seen, depth + 1), self.packed(v, seen, depth + 1)) for k, v in pairs])
        raise UnsplittableError("a set as an argument: its order depends on how it was made")
