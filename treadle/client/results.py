"""Results of a batch as its stream brings them: complete lines only, each with the cursor to read on from."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shared.api.requests import Answer


class Result(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """An answer and its place in the batch's stream."""

    cursor: str
    """Reading on with `after=<cursor>` brings what came later."""
    output: msgspec.Raw = msgspec.Raw(b"null")
    """What the kind reports. (msgspec decodes a Raw that stands alone, not the union with None that `Answer` has.)"""


_decoder = msgspec.json.Decoder(Result)


class LineReader:
    """NDJSON from a connection that may break anywhere: a line counts when its line feed has come."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> list[Result]:
        """The results that are complete now.

        Raises:
            msgspec.MsgspecError: a line is no result.
        """
        lines = (self._tail + data).split(b"\n") if b"\n" in data else None
        if lines is None:
            self._tail += data
            return []
        self._tail = lines.pop()
        return list(_decoded(lines))


def _decoded(lines: list[bytes]) -> Iterator[Result]:
    for line in lines:
        if line:
            yield _decoder.decode(line)
