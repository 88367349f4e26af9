"""What all bus messages share: frozen, closed, tagged by a versioned kind, msgpack on the wire.

A stream carries one closed union (`Topic`), so whoever reads it knows every kind it can meet, and an unknown one is an
error with a name instead of a silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Base of every message. Subclasses set `tag="noun.verb.vN"`."""


M = TypeVar("M", bound=Message)

ENTRY = b"m"
"""The one field of every stream entry."""


class Topic(Generic[M]):
    """Binds a stream to its closed union of messages."""

    __slots__ = ("_decoder", "_encoder", "maxlen", "name", "unreadable")

    def __init__(
        self,
        name: str,
        union: type[M] | object,
        *,
        maxlen: int | None = None,
        unreadable: Callable[[Mapping[bytes, bytes], str], M] | None = None,
    ) -> None:
        """Bind them.

        Args:
            name: of the stream.
            union: of its messages.
            maxlen: about how many entries the stream keeps; None where what writes or reads it drops them.
            unreadable: makes a message of an entry that does not decode, from its fields and the decoder's error, for
                a stream in which no entry may be skipped.
        """
        self.name = name
        self.maxlen = maxlen
        self.unreadable = unreadable
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(union)
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: M) -> bytes:
        """About 1 us."""
        return self._encoder.encode(message)

    def decode(self, raw: bytes) -> M:
        """About 1.5 us.

        Raises:
            msgspec.ValidationError: not a message of this topic.
        """
        return self._decoder.decode(raw)
