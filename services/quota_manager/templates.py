"""Filling of places `{name}` with a caller's values. Pure.

Law: a value is text that a model may have written. In a URL it is percent-encoded and cannot end its segment or its
parameter; in JSON it stays inside the text in which its place is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from shared.kinds.places import PLACE, fill_text, filled_size

_ORIGIN: Final = re.compile(r"https?://[^/?#{}\\\s]+(?=[/?#]|$)", re.IGNORECASE)
"""Scheme, host and port: without places, because a secret or a private address may depend on them."""
MOST_FILLED: Final = 8 << 20
"""Characters of all texts of a filled body."""
MOST_URL: Final = 32 << 10
"""Characters of a filled URL. Servers accept less."""


class InvalidTemplate(ValueError):
    """A template that these values cannot fill. The message has an instruction."""


def fill_url(template: str, values: Mapping[str, str]) -> str:
    """Return the URL with each place filled.

    Raises:
        InvalidTemplate: a place in scheme, host or port; a place without a value; a value that would change the
            structure of the path, because it is empty or makes a segment `.` or `..`; or a URL that is too long.
    """
    origin = _ORIGIN.match(template)
    if origin is None:
        raise InvalidTemplate("url: write http:// or https://, then a host without places; places follow in the path")
    rest = template[origin.end() :]
    path, mark, query = rest.partition("?")
    if "#" in path:
        raise InvalidTemplate("url: remove the part from '#' on; it is not sent")
    _check_size("url", rest, values, MOST_URL)
    filled = "".join((_fill(path, values, in_path=True), mark, _fill(query, values, in_path=False)))
    if path != filled.partition("?")[0] and any(
        unquote(segment) in (".", "..") for segment in filled.partition("?")[0].split("/")
    ):
        raise InvalidTemplate("url: a value makes a segment of the path '.' or '..'; send another value")
    url = origin[0] + filled
    if len(url) > MOST_URL:
        raise InvalidTemplate(f"url: it has {len(url)} characters with its values, and may have {MOST_URL}")
    return url


def _fill(part: str, values: Mapping[str, str], *, in_path: bool) -> str:
    def encoded(place: re.Match[str]) -> str:
        value = values.get(place[1])
        if value is None:
            raise InvalidTemplate(f"url: the place {{{place[1]}}} has no entry in `values`")
        if in_path and not value:
            raise InvalidTemplate(f"values.{place[1]}: it is in the path of `url` and must not be empty")
        return quote(value, safe="", errors="replace")

    return PLACE.sub(encoded, part)


def _check_size(what: str, template: Any, values: Mapping[str, str], most: int) -> None:
    """Check a template's size before it is filled. Raises InvalidTemplate."""
    size = filled_size(template, values)
    if size > most:
        raise InvalidTemplate(f"{what}: it has up to {size} characters with its values, and may have {most}")


def fill_query(query: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Return parameters of a URL with their places filled. Names that `values` lacks stay.

    Raises:
        InvalidTemplate: they would be too long for a URL.
    """
    _check_size("query", dict(query), values, MOST_URL)
    return {name: fill_text(value, values) for name, value in query.items()}


def fill_json(template: Any, values: Mapping[str, str]) -> Any:
    """Return a JSON value whose texts have their places filled; keys stay as they are. O(size).

    Names that `values` lacks stay: texts may have braces of their own. Its nesting is bounded: `json` is a parameter of
    free form, which is checked at submission.

    Raises:
        InvalidTemplate: its texts would be too long together.
    """
    if not values:
        return template
    _check_size("json", template, values, MOST_FILLED)
    return _fill_json(template, values)


def _fill_json(template: Any, values: Mapping[str, str]) -> Any:
    if isinstance(template, str):
        return fill_text(template, values)
    if isinstance(template, dict):
        return {key: _fill_json(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [_fill_json(value, values) for value in template]
    return template
