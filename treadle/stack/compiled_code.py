"""Where the services keep the machine code of the planner's and dispatcher's loops (numba).

Beside the source, where ``make setup`` and the container image have put it; in the home of the stack where nothing can
be written there (a wheel that another account has installed), so that only the first start compiles.
"""

import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"
LOOPS = "shared.policy"


def cache_setting(environ: Mapping[str, str], cache: Path, source: Path | None = None) -> dict[str, str]:
    """Return the variable that names the cache to the services; nothing where numba's own choice is right.

    Args:
        environ: a value for the variable in it is kept.
        cache: the folder to use where the source is closed; the services' account owns it.
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
    """Found out by writing, as numba does: a read-only file system does not show in permissions."""
    try:
        folder.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
