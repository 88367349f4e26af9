"""Python's garbage collector in a process that answers or measures many calls.

Start-up garbage is frozen, so the collector ignores it. Then it examines young objects every 10,000 allocations
(CPython's 700 costs a collection every few requests) and old ones rarely, because reference counts free what a request
leaves.
"""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (10_000, 5, 200)


def settle_collector() -> None:
    """Freeze what exists now, and collect the rest rarely. A full collection of a large process takes 0.1 s."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
