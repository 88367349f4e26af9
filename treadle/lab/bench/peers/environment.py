"""The peers' virtual environment, created on first use."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from treadle.lab.bench.figures import BenchError

PACKAGES = (
    *("dramatiq[redis]>=1.18", "hiredis>=3", "ray>=2.50", "redis>=6", "throttled-py[redis]>=3", "uvloop>=0.21"),
    *("litellm>=1.110", "fastapi>=0.115", "backoff>=2", "orjson>=3"),
    *("sglang-router>=0.3.2", "vllm-router>=0.1.17", "aiohttp>=3.11", "msgspec>=0.19"),
)
"""The dependency group ``peers``, packages that make dramatiq's client as fast as ours, and those that LiteLLM's
limiter imports."""
INSTALL_TIMEOUT_S = 600.0
CHECK = (
    "import aiohttp, dramatiq, fastapi, hiredis, litellm, msgspec, ray, redis.asyncio, throttled, uvloop"
    "; import sglang_router, vllm_router"
)
FOLDER = Path(".peers")


def peers_python(folder: Path, log: Callable[[str], None]) -> Path:
    """Return the interpreter with the peers; create its environment if it is missing (about 30 s, 250 MB).

    Args:
        folder: of the environment; ``.peers`` in the checkout is ignored by git.
    Raises:
        BenchError: the packages cannot be installed.
    """
    python = folder.absolute() / "bin" / "python"
    if _has_peers(python):
        return python
    log(f"installing the peers into {folder} (once; about 30 s): {', '.join(PACKAGES)}")
    _run([sys.executable, "-m", "venv", str(folder)], "make an environment")
    _run(
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], "install the peers"
    )
    if not _has_peers(python):
        raise BenchError(f"the peers were installed into {folder} but cannot be imported; remove it and try again")
    return python


def _has_peers(python: Path) -> bool:
    if not python.exists():
        return False
    return subprocess.run([python, "-c", CHECK], capture_output=True, timeout=120, check=False).returncode == 0


def _run(argv: list[str], what: str) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"cannot {what}: {error}") from error
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise BenchError(f"cannot {what}: {' '.join(last) or f'status {done.returncode}'}")
