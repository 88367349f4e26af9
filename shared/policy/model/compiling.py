"""Compilation of the decision loops: cached on disk if a folder is writable, else repeated in every process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


class _Cache(FunctionCache):
    """Numba's cache on disk, without what it cannot read.

    A full disk truncates its files, and after an upgrade they may name classes that are no more. Numba raises then, and
    a leader that cannot load its loops cannot start.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled code of a signature; None: it has to be compiled."""
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - whatever unpickling raises
            self.flush()  # type: ignore[no-untyped-call]
            return None


def compiled(loop: Callable[..., Any]) -> Any:
    """Return the function in machine code, compiled at its first call; other threads continue while it runs.

    Numba caches compiled code in `NUMBA_CACHE_DIR`, which `treadle up` sets if the source is read-only; else beside the
    source, or in the user's home. If none is writable, it raises. Then nothing is cached, and every process compiles,
    which costs a few seconds.
    """
    function: Any = njit(nogil=True)(loop)
    try:
        function._cache = _Cache(loop)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return function
    return function
