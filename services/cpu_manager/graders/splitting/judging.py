"""Comparing what the sandbox sent with a plan. The first deviation decides; nothing that comes after it is read."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from services.cpu_manager.graders.splitting.operators import TooCostlyError, weight_of
from services.cpu_manager.graders.splitting.packing import unpacked
from services.cpu_manager.graders.splitting.plan import Check, Later, Plan, Sent
from services.cpu_manager.graders.splitting.values import NotPlainError

_SHOWN_CHARS: Final = 500
_NAME_CHARS: Final = 200
_TRACEBACK_CHARS: Final = 2000
_MOST_WEIGHT: Final = 1 << 20
"""Of a value that an operation makes from results."""

Decided = Literal["undecided", "passed", "failed", "error"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one run."""

    decided: Decided = "undecided"
    """`failed`: an assertion was false. `error`: another exception. `undecided`: the results ended too early."""
    exception: str = ""
    message: str = ""
    traceback: str = ""


def raised(told: dict[str, Any]) -> Finding:
    """The finding where the program or its tests raised an exception, in the words of the harness or of the program."""
    exception = str(told.get("exception", "Exception"))[:_NAME_CHARS]
    failed = exception == "AssertionError" or told.get("assertion") is True
    return Finding(
        decided="failed" if failed else "error",
        exception=exception,
        message=str(told.get("message", ""))[:_SHOWN_CHARS],
        traceback=str(told.get("traceback", ""))[-_TRACEBACK_CHARS:],
    )


class Judge:
    """Reads the results of one run of a plan, in pieces. It holds at most the report's bytes and their values."""

    def __init__(self, plan: Plan) -> None:
        self._events = plan.events
        self._next = 0
        self._values: dict[int, Any] = {}
        self._rest = b""
        self.taken = 0
        """Bytes read so far."""
        self.finding = Finding()

    def take(self, piece: bytes) -> Finding:
        """Read the next bytes of the report. Linear in their number; raises nothing."""
        self.taken += len(piece)
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if self.finding.decided != "undecided":
                break
            try:
                self._take_line(line)
            except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
                self._decide("error", "UnreadableResult", "the results are not what the harness writes")
        return self.finding

    def _take_line(self, line: bytes) -> None:
        told = msgspec.json.decode(line)
        if isinstance(told, dict):
            self._raised(told)
        elif told == []:
            self._advance()
            if self.finding.decided == "undecided":
                if self._next < len(self._events):
                    raise ValueError("results are missing")
                self.finding = Finding(decided="passed")
        else:
            self._advance()
            if self.finding.decided == "undecided":
                self._result(told)

    def _result(self, told: Any) -> None:
        index, value = told
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
            self._decide("failed", "AssertionError", "a result is too large to be compared", check.line)
        except Exception as error:  # noqa: BLE001  # as in one file: the operation's own exception leaves the test
            self._decide("error", type(error).__name__, str(error)[:_SHOWN_CHARS], check.line)
        else:
            self._decide("failed", "AssertionError", check.message, check.line)

    def _evaluated(self, operand: Any) -> Any:
        if isinstance(operand, Sent):
            return self._values[operand.index]
        if isinstance(operand, Later):
            found = operand.operation(*[self._evaluated(one) for one in operand.operands])
            weight_of(found, _MOST_WEIGHT)
            return found
        return operand

    def _raised(self, told: dict[str, Any]) -> None:
        self.finding = raised(told)

    def _decide(self, decided: Decided, exception: str, message: str, line: int = 0) -> None:
        shown = f"{exception}: {message}" if message else exception
        trace = f'Traceback (most recent call last):\n  File "tests.py", line {line}\n{shown}' if line else shown
        self.finding = Finding(decided=decided, exception=exception, message=message, traceback=trace)
