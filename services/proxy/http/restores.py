"""Replies to callers whose action came to its deadline while its model service was restored."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from services.proxy.http.replies import Reply
from shared.runtime.errors import NotResident

_NAMED: Final = b'"retry_in_s":'
_answer: Final = msgspec.json.Decoder(dict[str, Any])


def reply_of(answer: bytes) -> Reply:
    """Return 200 with an answer. O(size), without decoding it.

    For routes that submit work and wait for it. Routes that read an action reply 200 in any case: it has been answered.

    Raises:
        NotResident: the action came to its deadline while its model service was restored.
    """
    if _NAMED in answer:  # or in its output
        found = _answer.decode(answer)
        if retry_in_s := found.get("retry_in_s"):
            raise NotResident(str(found.get("reason", "")), float(retry_in_s), found)
    return Reply(200, answer)
