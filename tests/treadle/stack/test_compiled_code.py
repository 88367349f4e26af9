"""Compiled loops are kept: beside the source, or in the stack's home where nothing can be written there."""

import subprocess
import sys
from pathlib import Path

import pytest

from treadle.stack.compiled_code import cache_setting
from treadle.stack.home import open_home
from treadle.testing.servers import clean_environment

WARM = """
from shared.policy.elastic import arrange, eviction, scheduling
from shared.policy.scaling import simulation_kernel
scheduling.warm(); simulation_kernel.warm()
modules = (arrange, eviction, simulation_kernel)
loops = [loop for module in modules for loop in vars(module).values() if hasattr(loop, "stats")]
print(sum(sum(loop.stats.cache_hits.values()) for loop in loops))
print(sum(sum(loop.stats.cache_misses.values()) for loop in loops))
"""


def warmed(environ: dict[str, str]) -> tuple[int, int]:
    """Loops that a process has loaded from the cache, and those that it has compiled."""
    done = subprocess.run(
        [sys.executable, "-c", WARM], env=environ, capture_output=True, text=True, timeout=280, check=True
    )
    hits, misses = map(int, done.stdout.split())
    return hits, misses


def test_a_read_only_installation_keeps_its_loops_in_the_home(stack_home: Path) -> None:
    home = open_home(stack_home)
    read_only = Path("/proc/self")  # no user can create a folder there, not even root
    setting = cache_setting({}, home.cache, read_only)
    assert setting == {"NUMBA_CACHE_DIR": str(home.cache)}
    environ = {**clean_environment(), **setting}
    assert warmed(environ)[0] == 0
    hits, misses = warmed(environ)
    assert (hits > 0, misses) == (True, 0)


def test_an_installation_that_can_be_written_keeps_them_beside_the_source(tmp_path: Path) -> None:
    assert cache_setting({}, tmp_path / "cache", tmp_path) == {}


def test_the_choice_of_the_operator_stays(tmp_path: Path) -> None:
    assert cache_setting({"NUMBA_CACHE_DIR": "/var/cache"}, tmp_path, Path("/proc/self")) == {}


@pytest.mark.parametrize("script", ["scripts/setup", "Dockerfile"])
def test_loops_are_compiled_when_the_environment_is_made(script: str) -> None:
    command = (
        "from shared.policy.elastic import scheduling; from shared.policy.scaling import simulation_kernel; "
        "scheduling.warm(); simulation_kernel.warm()"
    )
    assert command in Path(script).read_text()
