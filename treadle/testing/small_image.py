"""Small images without a registry, from this machine's own files, in about a second: a shell, and Python on request.

``with small_image("treadletest:tools", python=True): ...`` builds one and removes it.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

PROGRAMS = """
    bash sh ls cat sleep true false env id ps dd chmod chown mkdir rm rmdir tar gzip seq head tail wc touch mv cp ln
    readlink pwd nproc taskset setsid kill timeout sort grep sed yes mount unshare printf test stat tee tr basename
    dirname mkfifo sync uname find xargs hostname nice mknod
"""
LEFT_OUT = re.compile(
    r"/(test|tests|idlelib|ensurepip|lib2to3|turtledemo|site-packages|dist-packages|config-[^/]*)(/|$)|\.opt-[12]\.pyc$"
)
PASSWD = b"root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/sh\n"


def build(tag: str, *, python: bool = False, folder: Path | None = None, without: re.Pattern[str] = LEFT_OUT) -> None:
    """An image of this name: 15 MB, with Python 60 MB.

    Args:
        tag: its name.
        python: add this interpreter.
        folder: a folder of this machine that is added at its own path, with the libraries that its extensions need.
        without: paths below it that are left out.
    """
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            extensions = [] if folder is None else _add_folder(archive, folder, without)
            _fill(archive, python, extensions)
        file.flush()
        run("docker", "import", file.name, tag)


@contextlib.contextmanager
def small_image(
    tag: str, *, python: bool = False, folder: Path | None = None, without: re.Pattern[str] = LEFT_OUT
) -> Iterator[str]:
    build(tag, python=python, folder=folder, without=without)
    try:
        yield tag
    finally:
        run("docker", "image", "rm", "--force", tag)


def run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout


def _add_folder(archive: tarfile.TarFile, folder: Path, without: re.Pattern[str]) -> list[Path]:
    """A folder. Returns its extensions of Python."""

    def kept(path: str) -> bool:
        return not without.search("/" + path.lstrip("/"))

    archive.add(folder, str(folder).lstrip("/"), filter=lambda entry: entry if kept(entry.name) else None)
    return [path for path in folder.rglob("*.so") if kept(str(path))]


def _fill(archive: tarfile.TarFile, python: bool, extensions: list[Path]) -> None:
    for folder, mode in {"tmp": 0o1777, "root": 0o700, "run": 0o755, "etc": 0o755, "proc": 0o755, "sys": 0o755}.items():
        entry = tarfile.TarInfo(folder)
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        archive.addfile(entry)
    entry = tarfile.TarInfo("etc/passwd")
    entry.size = len(PASSWD)
    archive.addfile(entry, BytesIO(PASSWD))
    programs = {name: Path(found).resolve() for name in PROGRAMS.split() if (found := shutil.which(name))}
    for name, path in programs.items():
        archive.add(path, f"usr/bin/{name}")
        _link(archive, f"bin/{name}", f"../usr/bin/{name}")
    needed = [*programs.values(), *extensions]
    if python:
        needed += _add_python(archive)
    for library in sorted(_libraries(needed)):
        archive.add(library.resolve(), str(library).lstrip("/"))


def _add_python(archive: tarfile.TarFile) -> list[Path]:
    """This interpreter and its standard library, where they are here. Returns what has libraries of its own."""
    interpreter = Path(sys.executable).resolve()
    library = Path(os.__file__).resolve().parent
    archive.add(interpreter, str(interpreter).lstrip("/"))
    for name in ("python3", "python"):
        for place in {"usr/bin", str(interpreter.parent).lstrip("/")}:  # virtual environments link to the second
            _link(archive, f"{place}/{name}", str(interpreter))
    archive.add(
        library, str(library).lstrip("/"), filter=lambda entry: None if LEFT_OUT.search("/" + entry.name) else entry
    )
    return [interpreter, *library.glob("lib-dynload/*.so")]


def _link(archive: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    archive.addfile(entry)


def _libraries(programs: list[Path]) -> set[Path]:
    """The shared libraries of these programs and the loader, by the paths that the loader searches."""
    printed = subprocess.run(
        ["ldd", *map(str, programs)], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", printed)}
