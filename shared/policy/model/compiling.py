"""Compilation of the decision loops: cached on disk if a folder is writable, else repeated in every process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(loop: Callable[..., Any]) -> Any:
    """Return the function in machine code, compiled at its first call; other threads continue while it runs.

    Numba caches compiled code in `NUMBA_CACHE_DIR`, which `treadle up` sets if the source is read-only; else beside the
    source, or in the user's home. If none is writable, it raises. Then nothing is cached, and every process compiles,
    which costs a few seconds.
    """
    try:
        return njit(cache=True, nogil=True)(loop)
    except RuntimeError:
        return njit(nogil=True)(loop)
