"""Compiling the loops that decide: kept on disk where a place can be written, anew in every process where none can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(loop: Callable[..., Any]) -> Any:
    """The function in machine code, made at its first call; other threads go on while it runs.

    Numba keeps what it compiled in `NUMBA_CACHE_DIR`, which `treadle up` sets where the source is read-only; else
    beside the source, or in the user's home. Where none can be written it raises, and nothing is kept: every process
    compiles, which costs a few seconds.
    """
    try:
        return njit(cache=True, nogil=True)(loop)
    except RuntimeError:
        return njit(nogil=True)(loop)
