"""Names of signals."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """Return the name of a signal, as SIGKILL; `signal 40` for one that Python has no name for: most real-time ones."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
