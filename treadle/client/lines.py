"""Results of a batch as its stream sends them: complete lines only."""

from __future__ import annotations

import msgspec

from treadle.client.answers import Result

_decoder = msgspec.json.Decoder(Result)


class LineReader:
    """NDJSON from a connection that may break anywhere: a line counts when its line feed has come."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> list[Result]:
        """Return the results that are complete now.

        Raises:
            msgspec.MsgspecError: a line is no result.
        """
        if b"\n" not in data:
            self._tail += data
            return []
        *lines, self._tail = (self._tail + data).split(b"\n")
        return [_decoder.decode(line) for line in lines if line]
