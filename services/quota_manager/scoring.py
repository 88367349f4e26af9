"""Score and amounts in the body of an accepted answer. Pure. The body is hostile (`shared.kinds.scoring`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from services.quota_manager.kinds import Extraction
from shared.kinds.scoring import NoScore, always, at_pointer, decoded_json, last_match, number, scaled
from shared.policy.resources.settling import MOST_USED


def score_of(extraction: Extraction, body: bytes, in_time: Callable[[], bool] = always) -> float:
    """Return the score in an answer's body, after `scale`. `in_time`: asked after each match of a pattern.

    Raises:
        NoScore: there is none.
        InvalidPattern: the pattern is invalid.
    """
    found: Any
    if extraction.pointer is None and extraction.pattern is not None:
        found = body.decode(errors="replace")
    else:
        found = at_pointer(decoded_json(body), extraction.pointer or "")
    if extraction.pattern is not None:
        text = found if isinstance(found, str) else msgspec.json.encode(found).decode()
        found = last_match(extraction.pattern, text, in_time)
    return scaled(found, extraction.scale)


def amount_of(pointer: str, document: Any) -> float | None:
    """Return an amount that was used, in an answer; None if it has none, or one that is ignored."""
    try:
        amount = number(at_pointer(document, pointer))
    except NoScore:
        return None
    return amount if 0 <= amount <= MOST_USED else None
