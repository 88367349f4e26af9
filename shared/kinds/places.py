"""Places `{name}` in parameters of calls, and the texts that fill them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

PLACE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def places_of(params: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return parameter -> names of the places in it that `values` fills. O(size)."""
    return {name: frozenset(_places(params[name])) for name in ("url", "query", "json") if name in params}


def _places(template: Any) -> Iterator[str]:
    if isinstance(template, str):
        yield from PLACE.findall(template)
    elif isinstance(template, dict | list):
        for part in template.values() if isinstance(template, dict) else template:
            yield from _places(part)


def filled_size(template: Any, values: Mapping[str, str]) -> int:
    """Return the characters of the texts of a JSON value once they are filled: at least, without what is encoded.

    A short template can repeat a long value, so it is counted before it is built. O(size of the template).
    """
    if isinstance(template, str):
        return len(template) + sum(len(values.get(name, "")) for name in PLACE.findall(template))
    if isinstance(template, dict):
        return sum(filled_size(value, values) for value in template.values())
    if isinstance(template, list):
        return sum(filled_size(value, values) for value in template)
    return 0


def fill_text(template: str, values: Mapping[str, str]) -> str:
    """Return a text with its places filled, once: a place in a value stays. Places that `values` lacks stay."""
    return PLACE.sub(lambda place: values.get(place[1], place[0]), template)
