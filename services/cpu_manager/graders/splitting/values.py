"""Plain data outside the sandbox: sets and dicts whose cost an attacker cannot choose.

A set of integers that collide costs quadratic time (475 KB of them: 2.6 s), because Python does not randomise the hash
of numbers. `PlainSet` and `PlainDict` therefore look up their elements by a canonical byte string. The hash of bytes is
randomised. All other plain data are Python's own objects, and `==` has Python's own meaning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Final

MOST_DEPTH: Final = 100
"""Most levels of nesting. Far below the depth at which the interpreter's own comparison fails."""


class NotPlainError(ValueError):
    """A result in a form that the harness does not write, or nested too deeply."""


class Opaque:
    """A result that is not plain data: unequal to everything."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self.name}>"


class PlainSet:
    """A set or frozenset. Building it is linear in the bytes of its elements."""

    __slots__ = ("frozen", "members")

    def __init__(self, elements: Iterable[Any], *, frozen: bool = False) -> None:
        """Raise TypeError for an element that Python could not hash."""
        self.frozen = frozen
        self.members: dict[bytes, Any] = {}
        for element in elements:
            self.members.setdefault(key_of(element), element)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlainSet) and self.members.keys() == other.members.keys()

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.members.values())

    def __contains__(self, element: object) -> bool:
        return key_of(element) in self.members

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self))}}}" if self.members else "set()"


class PlainDict:
    """A dict. Building it is linear in the bytes of its keys."""

    __slots__ = ("entries",)

    def __init__(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Raise TypeError for a key that Python could not hash."""
        self.entries: dict[bytes, tuple[Any, Any]] = {}
        for key, value in pairs:
            place = key_of(key)
            first = self.entries.get(place)
            self.entries[place] = (key if first is None else first[0], value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PlainDict) or self.entries.keys() != other.entries.keys():
            return False
        return all(_same(value, other.entries[place][1]) for place, (_, value) in self.entries.items())

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self.entries.values())

    def __contains__(self, key: object) -> bool:
        return key_of(key) in self.entries

    def __getitem__(self, key: object) -> Any:
        place = key_of(key)
        if place not in self.entries:
            raise KeyError(key)
        return self.entries[place][1]

    def items(self) -> list[tuple[Any, Any]]:
        """Return pairs in order of insertion."""
        return list(self.entries.values())

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{key!r}: {value!r}' for key, value in self.items())}}}"


def _same(one: Any, other: Any) -> bool:
    return one is other or bool(one == other)


def key_of(value: Any, depth: int = 0) -> bytes:
    """Return canonical bytes of a hashable value. They are equal if and only if Python considers the values equal.

    A NaN and an opaque value get a unique key, because they equal nothing.

    Raises:
        TypeError: it is a list, a dict or a set, which have no key.
        NotPlainError: it is nested deeper than MOST_DEPTH.
    """
    if depth > MOST_DEPTH:
        raise NotPlainError("nested too deeply")
    if value is None:
        return b"N"
    kind = type(value)
    if kind is str:
        return b"s%s" % value.encode("utf-8", "surrogatepass")
    if kind in (int, bool):
        return b"i%x" % value
    if kind is float:
        return _key_of_float(value)
    if kind is complex:
        if value.imag == 0:
            return _key_of_float(value.real)
        return b"c" + _key_of_float(value.real) + b"," + _key_of_float(value.imag)
    if kind is bytes:
        return b"b%s" % value
    if kind is tuple:
        return b"(" + _joined([key_of(part, depth + 1) for part in value])
    if kind is PlainSet and value.frozen:
        return b"{" + _joined(sorted(value.members))
    if kind is Opaque:
        return b"o%d" % id(value)
    raise TypeError(f"unhashable type: {kind.__name__!r}")


def _joined(keys: list[bytes]) -> bytes:
    return b"".join(b"%d:%s" % (len(key), key) for key in keys)


def _key_of_float(value: float) -> bytes:
    if math.isfinite(value) and value.is_integer():
        return b"i%x" % int(value)
    if value != value:
        return b"nan%d" % id(value)
    return b"f" + value.hex().encode()
