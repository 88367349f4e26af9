"""Comparison of the sandbox's results with a plan. The first deviation decides; later results are not read."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from services.cpu_manager.graders.splitting.operators import TooCostlyError
from services.cpu_manager.graders.splitting.packing import unpacked
from services.cpu_manager.graders.splitting.plan import Check, Later, Sent, SplitPlan
from services.cpu_manager.graders.splitting.values import NotPlainError

_SHOWN_CHARS: Final = 500
_NAME_CHARS: Final = 200
_TRACEBACK_CHARS: Final = 2000
_OWN_NAMES: Final = {"PlainSet": "set", "PlainDict": "dict", "Opaque": "object"}

Decided = Literal["undecided", "passed", "failed", "error"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one run's judgement."""

    decided: Decided = "undecided"
    """`failed`: an assertion was false. `error`: another exception. `undecided`: the results ended too early."""
    exception: str = ""
    message: str = ""
    traceback: str = ""


def raised(decoded: dict[str, Any]) -> Finding:
    """Return the finding for an exception of the program or its tests, from the harness's or the program's report."""
    exception = str(decoded.get("exception", "Exception"))[:_NAME_CHARS]
    failed = exception == "AssertionError" or decoded.get("assertion") is True
    return Finding(
        decided="failed" if failed else "error",
        exception=exception,
        message=str(decoded.get("message", ""))[:_SHOWN_CHARS],
        traceback=str(decoded.get("traceback", ""))[-_TRACEBACK_CHARS:],
    )


class Judge:
    """Reads the results of one run of a plan, in pieces.

    The work for a whole report is bounded: results are read once, linear in their bytes; each operation on them is
    applied once; and a comparison costs at most its constant, which the plan's steps have counted.
    """

    def __init__(self, plan: SplitPlan) -> None:
        self._events = plan.events
        self._next = 0
        self._values: dict[int, Any] = {}
        self._pieces: list[bytes] = []
        self.taken = 0
        """Bytes read so far."""
        self.waiting = 0
        """Number of these in an incomplete line."""
        self.finding = Finding()

    def take(self, piece: bytes) -> Finding:
        """Read the next bytes of the report. Linear in their number; never raises."""
        self.taken += len(piece)
        self.waiting += len(piece)
        self._pieces.append(piece)
        if b"\n" not in piece:
            return self.finding
        *lines, rest = b"".join(self._pieces).split(b"\n")
        self._pieces, self.waiting = [rest], len(rest)
        for line in lines:
            if self.finding.decided != "undecided":
                break
            try:
                self._take_line(line)
            except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
                self._decide("error", "UnreadableResult", "the results are not what the harness writes")
        return self.finding

    def _take_line(self, line: bytes) -> None:
        decoded = msgspec.json.decode(line)
        self._advance()
        if self.finding.decided != "undecided":
            return
        if isinstance(decoded, dict):
            self.finding = raised(decoded)
        elif decoded == []:
            if self._next < len(self._events):
                raise ValueError("results are missing")
            self.finding = Finding(decided="passed")
        else:
            self._result(decoded)

    def _result(self, decoded: Any) -> None:
        index, value = decoded
        event = self._events[self._next] if self._next < len(self._events) else None
        if not isinstance(event, Sent) or type(index) is not int or index != event.index:
            raise ValueError("not the next result")
        self._values[index] = unpacked(value)
        self._next += 1
        self._advance()

    def _advance(self) -> None:
        """Check the assertions up to the next result."""
        while self._next < len(self._events):
            event = self._events[self._next]
            if not isinstance(event, Check):
                return
            self._check(event)
            if self.finding.decided != "undecided":
                return
            self._next += 1

    def _check(self, check: Check) -> None:
        try:
            if self._evaluated(check.test):
                return
        except (TooCostlyError, NotPlainError, RecursionError):
            self._decide("failed", "AssertionError", "a result is beyond the bounds of a comparison", check.line)
        except Exception as error:  # noqa: BLE001  # as in one file: the test ends with the operation's own exception
            self._decide("error", type(error).__name__, _shown(error), check.line)
        else:
            self._decide("failed", "AssertionError", check.message, check.line)

    def _evaluated(self, operand: Any) -> Any:
        if isinstance(operand, Sent):
            return self._values[operand.index]
        if isinstance(operand, Later):
            return operand.operation(*[self._evaluated(one) for one in operand.operands])
        return operand

    def _decide(self, decided: Decided, exception: str, message: str, line: int = 0) -> None:
        shown = f"{exception}: {message}" if message else exception
        trace = f'Traceback (most recent call last):\n  File "tests.py", line {line}\n{shown}' if line else shown
        self.finding = Finding(decided=decided, exception=exception, message=message, traceback=trace)


def _shown(error: Exception) -> str:
    """Return the exception's message with Python's names of the types."""
    message = str(error)[:_SHOWN_CHARS]
    for own, name in _OWN_NAMES.items():
        message = message.replace(own, name)
    return message
