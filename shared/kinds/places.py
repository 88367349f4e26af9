"""Places `{name}` in parameters of calls: entries of `values` fill them. Pure."""

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
