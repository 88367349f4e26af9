"""Address of the proxy: an option, a variable or the stack of TREADLE_HOME."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from treadle.stack.home import home_path
from treadle.stack.operate import current_state
from treadle.stack.services import PROXY


def find_proxy(environ: Mapping[str, str], url: str | None = None, home: Path | None = None) -> str | None:
    """Return the proxy's address: `url`, else TREADLE_URL, else that of the running stack in `home` (TREADLE_HOME).

    Returns:
        None if no address is given and no stack with a proxy is up.
    Raises:
        StackError: the stack's state cannot be read.
    """
    if url or (url := environ.get("TREADLE_URL")):
        return url
    state = current_state(home.absolute() if home else home_path(environ))
    services = state.services if state else ()
    return next((service.url for service in services if service.name == PROXY), None)
