"""A disk whose fsync is slow, without one: a preloaded library lets a program wait before each."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from treadle.stack.home import Home
from treadle.stack.valkey import valkey_answers, valkey_launch, valkey_socket
from treadle.testing.servers import running

FSYNC_S = 0.03
"""A busy network disk; a local one takes 0.1 to 5 ms."""

SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static int slowly(const char *name, int fd) {
    struct timespec pause = {0, PAUSE_NS};
    nanosleep(&pause, 0);
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(fd);
}

int fsync(int fd) { return slowly("fsync", fd); }
int fdatasync(int fd) { return slowly("fdatasync", fd); }
"""


def slow_fsync(folder: Path) -> Path:
    """A library to preload, built in `folder`. Skips the test where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: a slow disk cannot be had here")
    source, library = folder / "slow_fsync.c", folder / "slow_fsync.so"
    source.write_text(SOURCE)
    pause = f"-DPAUSE_NS={round(FSYNC_S * 1e9)}L"
    subprocess.run([compiler, "-shared", "-fPIC", pause, str(source), "-o", str(library), "-ldl"], check=True)
    library.chmod(0o755)
    return library


@contextmanager
def valkey_on_slow_disk(home: Home, library: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A durable Valkey on `home` that waits before each fsync; data found there is loaded."""
    launch = valkey_launch(home)
    launch = replace(launch, env={**launch.env, "LD_PRELOAD": str(library)})
    with running(launch, lambda _: valkey_answers(valkey_socket(home))) as process:
        yield process
