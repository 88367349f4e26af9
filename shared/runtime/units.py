"""Names for numbers in signatures."""

from __future__ import annotations

Seconds = float
"""A duration in seconds, or a time on a monotonic clock if the parameter is named `now`."""

Epoch = int
"""Number of a leader's term. Valkey increments it at each change of leader."""
