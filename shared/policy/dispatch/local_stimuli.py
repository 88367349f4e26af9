"""Stimuli about actions that the leader decides about before they are journaled; see `stimuli`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ActionWithdrawn:
    """An action is not accepted after all: it is removed without an answer. No grant of it was or will be sent."""

    action: str
