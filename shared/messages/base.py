"""Base of all bus messages: frozen, closed, tagged by a versioned kind, msgpack on the wire.

A stream carries one closed union (`Topic`). So its readers know every kind, and an unknown one is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Base of every message. Subclasses set `tag="noun.verb.vN"`."""


M = TypeVar("M", bound=Message)

ENTRY = b"m"
"""The field of a stream entry that has the message."""


class Topic(Generic[M]):
    """Binds a stream to its closed union of messages. Encodes and decodes them."""

    __slots__ = ("_decoder", "_encoder", "maxlen", "name", "unreadable")

    def __init__(
        self,
        name: str,
        union: type[M] | object,
        *,
        maxlen: int | None = None,
        unreadable: Callable[[Mapping[bytes, bytes], str], M] | None = None,
    ) -> None:
        """Bind a stream to its messages.

        Args:
            name: of the stream.
            union: of its messages.
            maxlen: approximate bound of the stream's entries; None if its writer or reader deletes them.
            unreadable: makes a message of an undecodable entry, from its fields and the decoder's error. For a stream
                in which no entry may be skipped.
        """
        self.name = name
        self.maxlen = maxlen
        self.unreadable = unreadable
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(union)
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: M) -> bytes:
        """Encode a message. About 1 us."""
        return self._encoder.encode(message)

    def decode(self, raw: bytes) -> M:
        """Decode a message. About 1.5 us.

        Raises:
            error: one of `shared.runtime.validation.UNREADABLE`: not a message of this topic.
        """
        return self._decoder.decode(raw)
