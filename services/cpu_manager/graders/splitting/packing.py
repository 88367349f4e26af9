"""Encoding of plain data on its way into the sandbox and back.

Arguments enter as tagged tuples, marshalled with the plan: a scalar is itself, a container is `(tag, parts)`. The
harness builds a new argument from them each time (`sandbox/harnesses/calls.py`), and dicts exist only there.

Results return as JSON, decoded by C code that limits its depth. Lists and scalars are themselves; anything else is an
object with one key, the tag. Nothing received is executed, and JSON's own keys are text, whose hash is random.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from services.cpu_manager.graders.splitting.values import MOST_DEPTH, NotPlainError, Opaque, PlainDict, PlainSet

_SCALARS: Final = frozenset({type(None), bool, int, float, str})


def unpacked(node: Any, depth: int = 0) -> Any:
    """Return a result from its JSON form. Linear in its size.

    Raises:
        NotPlainError: it is nested deeper than MOST_DEPTH, or the harness does not write such a form.
    """
    kind = type(node)
    if kind in _SCALARS:
        return node
    if depth > MOST_DEPTH:
        raise NotPlainError("nested too deeply")
    if kind is list:
        return _parts(node, depth)
    if kind is dict and len(node) == 1:
        ((tag, body),) = node.items()
        read = _TAGS.get(tag)
        if read is not None:
            return read(body, depth)
    raise NotPlainError("not a result")


def _parts(nodes: Any, depth: int) -> list[Any]:
    if type(nodes) is not list:
        raise NotPlainError("not a result")
    if _SCALARS.issuperset(map(type, nodes)):
        return nodes
    return [unpacked(node, depth + 1) for node in nodes]


def _pairs(nodes: Any, depth: int) -> PlainDict:
    pairs = [_parts(node, depth) for node in _list(nodes)]
    if any(len(pair) != 2 for pair in pairs):
        raise NotPlainError("not a result")
    return PlainDict((key, value) for key, value in pairs)


def _list(node: Any) -> list[Any]:
    if type(node) is not list:
        raise NotPlainError("not a result")
    return node


def _text(node: Any) -> str:
    if type(node) is not str:
        raise NotPlainError("not a result")
    return node


def _float(node: Any) -> float:
    if node not in ("nan", "inf", "-inf"):
        raise NotPlainError("not a result")
    return float(node)


def _complex(nodes: Any, depth: int) -> complex:
    parts = _parts(nodes, depth)
    if len(parts) != 2 or any(type(part) is not float for part in parts):
        raise NotPlainError("not a result")
    return complex(*parts)


_TAGS: Final[dict[str, Callable[[Any, int], Any]]] = {
    "t": lambda body, depth: tuple(_parts(body, depth)),
    "s": lambda body, depth: PlainSet(_parts(body, depth)),
    "z": lambda body, depth: PlainSet(_parts(body, depth), frozen=True),
    "d": _pairs,
    "i": lambda body, _: int(_text(body), 16),
    "f": lambda body, _: _float(body),
    "c": _complex,
    "b": lambda body, _: bytes.fromhex(_text(body)),
    "u": lambda body, _: bytes.fromhex(_text(body)).decode("utf-8", "surrogatepass"),
    "o": lambda body, _: Opaque(_text(body)),
}
"""Tag -> reader: tuple, set, frozenset, dict, large integer, special float, complex, bytes, text with lone surrogates,
opaque."""
