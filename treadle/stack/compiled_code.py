"""Cache of the machine code of the planner's and dispatcher's loops (numba).

It is beside the source, where ``make setup`` and the container image put it. If that is not writable (a wheel that
another account installed), it is in the stack's home. So only the first start compiles.
"""

import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"
LOOPS = "shared.policy"


def cache_setting(environ: Mapping[str, str], cache: Path, source: Path | None = None) -> dict[str, str]:
    """Return the variable that sets the services' cache folder; nothing if numba's own choice is right.

    Args:
        environ: a value of the variable in it is kept.
        cache: the folder to use if the source is not writable; the services' account owns it.
        source: the folder of the compiled modules; None: that of this installation.
    """
    if environ.get(VARIABLE) or _writable((source or _source()) / "__pycache__"):
        return {}
    return {VARIABLE: str(cache)}


def _source() -> Path:
    spec = find_spec(LOOPS)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _writable(folder: Path) -> bool:
    """Try to write, as numba does, because permissions do not show a read-only file system."""
    try:
        folder.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
