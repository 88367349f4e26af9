"""JSON schemas of judgements: which are accepted, and whether a completion obeys one.

The engine is asked to write JSON of the schema, but engines ignore some of its keywords, such as the bounds of numbers.
A sample that persuades its judge to write `{"score": 95}` must not get 95 points where at most 10 are possible.

Law: a check is linear in the size of the schema times that of the completion; `MOST_CHECKS` bounds the product.
Therefore a schema has no recursion, no reference to another document, and no keyword that looks at parts again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import jsonschema_rs
import msgspec

from shared.kinds.scoring import NoScore

MOST_PARTS: Final = 4096
"""Parts of a schema, with the parts to which it refers in place of its references."""
MOST_CHECKS: Final = 1 << 24
"""Most parts of a schema times characters of a completion: some tenths of a second, in which nothing else runs."""
SHOWN_CHARS: Final = 200
_NAMED: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})
"""Keywords that hold schemas by name."""
_NO_PART: Final = frozenset({"enum", "const", "default", "examples", "$defs", "definitions"})
"""Keywords that hold data, or schemas that count only where they are referred to."""
_REFUSED: Final = frozenset({"$id", "id", "$dynamicRef", "$recursiveRef", "unevaluatedProperties", "unevaluatedItems"})
_encode: Final = msgspec.json.Encoder().encode


class InvalidSchema(ValueError):
    """An invalid JSON schema, or one that cannot be checked in bounded time. The message says what to write."""


def compiled(schema: dict[str, Any]) -> tuple[jsonschema_rs.Validator, int]:
    """Return the validator of a schema, and its number of parts. O(parts); the newest 64 are kept.

    Raises:
        InvalidSchema: it is invalid, or not within the bounds above.
    """
    found = _compiled(_encode(schema))
    if isinstance(found, str):
        raise InvalidSchema(found)
    return found


def check_document(schema: dict[str, Any], document: Any, size: int) -> None:
    """Check that a decoded completion obeys the schema. `size`: its characters.

    Raises:
        NoScore: it does not, or is too large for the schema.
    """
    validator, parts = compiled(schema)
    if parts * size > MOST_CHECKS:
        most = MOST_CHECKS // parts
        raise NoScore(f"the judgement has {size} characters; one of up to {most} is checked against this schema")
    for error in validator.iter_errors(document):
        where = "/".join(map(str, error.instance_path))
        raise NoScore(
            f"the judgement violates its schema at {f'/{where}'[:SHOWN_CHARS]!r}: {error.message[:SHOWN_CHARS]}"
        )


@lru_cache(maxsize=64)
def _compiled(encoded: bytes) -> tuple[jsonschema_rs.Validator, int] | str:
    """Return the validator, or the text of the error, which is also kept."""
    schema = msgspec.json.decode(encoded)
    try:
        parts = 0
        for _ in _parts(schema, schema, ()):
            parts += 1
            if parts > MOST_PARTS:
                raise InvalidSchema(f"it has more than {MOST_PARTS} parts, references counted as what they refer to")
        patterns = jsonschema_rs.RegexOptions()  # linear in the text
        return jsonschema_rs.validator_for(schema, retriever=_retrieve, pattern_options=patterns), max(1, parts)
    except ValueError as error:
        return str(error).split("\n", 1)[0][:SHOWN_CHARS]


def _parts(part: Any, root: Any, inside: tuple[str, ...]) -> Iterator[Any]:
    """Yield all schemas in a schema, those behind references as often as they are referred to. `inside`: references
    that lead here.
    """
    if not isinstance(part, dict):
        return
    yield part
    for keyword, value in part.items():
        if keyword in _REFUSED:
            raise InvalidSchema(f"{keyword} is not accepted; write the schema without it")
        if keyword == "$ref":
            if value in inside:
                raise InvalidSchema(
                    f"it is recursive at {str(value)[:SHOWN_CHARS]!r}; write as many levels as are needed"
                )
            yield from _parts(_referred(root, value), root, (*inside, value))
        elif keyword not in _NO_PART:
            for child in _children(value, is_named=keyword in _NAMED):
                yield from _parts(child, root, inside)


def _children(value: Any, *, is_named: bool) -> Iterable[Any]:
    if isinstance(value, list):
        return value
    return value.values() if is_named and isinstance(value, dict) else (value,)


def _referred(root: Any, reference: Any) -> Any:
    """Return the part of this schema to which a reference refers."""
    here = root
    if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")) or "%" in reference:
        raise InvalidSchema(f"$ref: {str(reference)[:SHOWN_CHARS]!r} is outside of it; write '#/$defs/NAME'")
    for token in reference.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        here = here.get(name) if isinstance(here, dict) else None
    if here is None:
        raise InvalidSchema(f"$ref: there is nothing at {reference[:SHOWN_CHARS]!r}")
    return here


def _retrieve(reference: str) -> Any:
    raise ValueError(f"$ref: {reference[:SHOWN_CHARS]!r} is outside of the schema")
