"""Harness of a program and calls of it. The results of each assertion are sent before the next assertion begins.

No expected value is present, so nothing has to be hidden: a program that forges results needs the right ones.
Results are reduced to plain data (None, bool, numbers, str, bytes, list, tuple, dict, set; subclasses to these). Any
other result is sent as opaque, and equals nothing.

Each line of the report is JSON: `[register, value]`, `{exception ...}`, or `[]` after the last instruction.
"""

from __future__ import annotations

import builtins
import json
import marshal
import math
import os
import sys
from collections.abc import Callable
from typing import Any, Final

from services.cpu_manager.sandbox.harnesses import guard

globals()["__builtins__"] = dict(vars(builtins))  # private, see `guard`

_DEEPEST: Final = 90
"""Most levels of a result; less than the reader's limit."""
_SMALL: Final = 1 << 53
_encode: Final = json.JSONEncoder(check_circular=False).encode
_APPLIED: Final[dict[str, Any]] = {
    name: getattr(builtins, name)
    for name in (
        *("abs", "all", "any", "bool", "dict", "float", "frozenset", "int", "len", "list", "max", "min", "repr"),
        *("round", "set", "sorted", "str", "sum", "tuple", "bytes", "complex", "isinstance"),
    )
}
"""Builtins for the tests, as they were before the program ran."""


def main(source: str, payload: bytes, report: Callable[[bytes], None]) -> None:
    """Run `source`, then the instructions of the payload, and report their results. Never returns."""
    instructions = marshal.loads(payload)
    sender = _Sender(report, os.getpid, guard.REPORT_BYTES)
    flush_and_exit, describe, exit_now = guard.flush_and_exit, guard.describe, guard.exit_function()
    exit_code = 1
    try:
        program = compile(source.encode("utf-8", "surrogatepass"), guard.PROGRAM, "exec", dont_inherit=True)
        namespace = guard.new_main(source)
        guard.extend_recursion_limit()
        exec(program, namespace)
        _run(instructions, namespace, sender)
        sender.line(b"[]\n")
        exit_code = 0
    except BaseException as error:  # noqa: BLE001  # SystemExit too: an exit before the last call is not a pass
        sender.line(describe(error) + b"\n")
    finally:
        flush_and_exit(exit_code, exit_now)


class _Sender:
    """Writes the report, only from the first process, and only as much as there is room for."""

    __slots__ = ("_getpid", "_pid", "_report", "_room")

    def __init__(self, report: Callable[[bytes], None], getpid: Callable[[], int], room: int) -> None:
        self._report = report
        self._getpid = getpid
        self._pid = getpid()
        self._room = room

    def line(self, line: bytes) -> None:
        if self._getpid() == self._pid:
            self._report(line)

    def result(self, register: int, value: Any) -> None:
        line = _line(register, _plain(value, 0))
        if len(line) > self._room:
            line = _line(register, {"o": f"{len(line)} bytes"})
        self._room -= len(line)
        self.line(line)


def _line(register: int, node: Any) -> bytes:
    return b"[%d,%s]\n" % (register, _encode(node).encode())


def _run(instructions: list[Any], namespace: dict[str, Any], sender: _Sender) -> None:
    registers: list[Any] = []
    for kind, *operands in instructions:
        if kind == "send":
            sender.result(operands[0], registers[operands[0]])
            continue
        if kind == "name":
            value = _look_up(namespace, operands[0])
        elif kind == "call":
            function, arguments, keywords = operands
            value = registers[function](*map(_built, arguments), **{name: _built(one) for name, one in keywords})
        elif kind == "apply":
            name, index, options, named = operands
            value = _APPLIED[name](registers[index], *options, **dict(named))
        elif kind == "isinstance":
            index, names = operands
            value = _APPLIED[kind](registers[index], tuple(_APPLIED[name] for name in names))
        elif kind == "item":
            value = registers[operands[0]][_built(operands[1])]
        elif kind == "attribute":
            value = getattr(registers[operands[0]], operands[1])
        else:
            exec(operands[0], namespace)  # an import at the tests' module level
            value = None
        registers.append(value)


def _look_up(namespace: dict[str, Any], name: str) -> Any:
    if name in namespace:
        return namespace[name]
    raise NameError(f"name {name!r} is not defined")


def _built(packed: Any) -> Any:
    """Return a new copy of an argument."""
    if type(packed) is not tuple:
        return packed
    tag, parts = packed
    if tag == ":":
        return {_built(key): _built(value) for key, value in parts}
    built = [_built(part) for part in parts]
    if tag == "|":
        return slice(*built)
    return built if tag == "[" else tuple(built)


def _plain(value: Any, depth: int) -> Any:
    """Return a result in the form that `graders/splitting/packing.py` reads."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    if depth > _DEEPEST:
        return {"o": "nested too deeply"}
    for base, reduce in _REDUCED:
        if isinstance(value, base):
            return reduce(value, depth)
    if kind.__module__ == "numpy" and isinstance(value, sys.modules["numpy"].generic):
        inner = value.item()
        return _plain(int(inner) if type(inner) is bool else inner, depth + 1)  # `is True` is false for it
    return {"o": kind.__name__}


def _integer(value: int, _: int) -> Any:
    number = int.__pos__(value)
    return number if -_SMALL < number < _SMALL else {"i": hex(number)}


def _float(value: float, _: int) -> Any:
    number = float.__pos__(value)
    return number if math.isfinite(number) else {"f": float.__repr__(number)}


def _complex(value: complex, _: int) -> Any:
    number = complex.__pos__(value)
    return {"c": [_float(number.real, 0), _float(number.imag, 0)]}


def _text(value: str, _: int) -> Any:
    text = str.__add__("", value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return {"u": text.encode("utf-8", "surrogatepass").hex()}
    return text


def _bytes(value: bytes, _: int) -> Any:
    return {"b": bytes.hex(value)}


def _parts(values: Any, depth: int) -> list[Any]:
    return [_plain(one, depth + 1) for one in values]


def _dict(value: dict[Any, Any], depth: int) -> Any:
    return {"d": [[_plain(key, depth + 1), _plain(inner, depth + 1)] for key, inner in dict.items(value)]}


_REDUCED: Final[tuple[tuple[type, Callable[[Any, int], Any]], ...]] = (
    (int, _integer),
    (str, _text),
    (float, _float),
    (list, lambda value, depth: _parts(list.__iter__(value), depth)),
    (tuple, lambda value, depth: {"t": _parts(tuple.__iter__(value), depth)}),
    (dict, _dict),
    (set, lambda value, depth: {"s": _parts(set.__iter__(value), depth)}),
    (frozenset, lambda value, depth: {"z": _parts(frozenset.__iter__(value), depth)}),
    (bytes, _bytes),
    (complex, _complex),
)
"""Base -> its conversion. A subclass is read with the methods of its base."""
