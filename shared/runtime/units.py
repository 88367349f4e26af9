"""Names for numbers, so a signature says what it counts."""

from __future__ import annotations

Seconds = float
"""A duration in seconds, or a point on a monotonic clock where the parameter says `now`."""

Epoch = int
"""A leader's term, counted up by Valkey at each change of leader."""
