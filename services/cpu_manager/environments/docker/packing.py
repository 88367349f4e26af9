"""Packs the interpreter that runs this file into a tar archive: `python -I -S packing.py FOLDER MODULE > archive`.

The result calls `main()` of that module (found in FOLDER) on any Linux of this machine's architecture, whatever its
image contains. It has the interpreter, its loader and mapped libraries, and the compiled modules that MODULE's package
imports anywhere. Nothing is looked up elsewhere. About 12 MB with Debian's Python.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import io
import marshal
import sys
import tarfile
from pathlib import Path
from types import CodeType, ModuleType

LOADER = "lib/loader"
INTERPRETER = "bin/python3"
PROGRAM = "program.pyc"
_HOME = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}"
_CODECS = {"encodings.ascii", "encodings.latin_1"}
"""Codecs beside UTF-8, which the interpreter itself imports."""


def pack(folder: str, module: str) -> bytes:
    """Return the archive. Files are owned by root and readable by everybody; their time is 0."""
    sys.path.append(folder)
    importlib.import_module(module)
    for name in _late_imports(Path(folder, module.partition(".")[0])) | _CODECS:
        importlib.import_module(name)
    program = compile(f"from {module} import main\nmain()\n", "program", "exec", dont_inherit=True)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        _add(archive, INTERPRETER, Path(sys.executable).resolve().read_bytes())
        _add_directory(archive, f"{_HOME}/lib-dynload")  # the interpreter warns if it is missing
        for name, imported in sorted(sys.modules.items()):
            _add_module(archive, name, imported)
        for path in _libraries():
            _add_library(archive, path)
        _add(archive, PROGRAM, _compiled(program))
    return buffer.getvalue()


def _late_imports(package: Path) -> set[str]:
    """Return the absolute imports of a package, including those within functions."""
    found = set()
    for source in package.glob("*.py"):
        for node in ast.walk(ast.parse(source.read_bytes())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module)
    return found


def _add_module(archive: tarfile.TarFile, name: str, imported: ModuleType) -> None:
    """Add a module as a file that is imported without its source. Built-in modules are left out."""
    spec = getattr(imported, "__spec__", None)
    if spec is None or spec.name != name or not hasattr(spec.loader, "get_code"):
        return
    code = spec.loader.get_code(name)
    if code is not None:
        path = name.replace(".", "/") + ("/__init__" if spec.submodule_search_locations is not None else "")
        _add(archive, f"{_HOME}/{path}.pyc", _compiled(code))
    elif spec.has_location and spec.origin:
        _add(archive, f"{_HOME}/lib-dynload/{Path(spec.origin).name}", Path(spec.origin).read_bytes())


def _compiled(code: CodeType) -> bytes:
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


def _libraries() -> list[Path]:
    """Return the loader and the shared libraries that are mapped now."""
    fields = [line.split(None, 5) for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()]
    mapped = {Path(field[5].strip()) for field in fields if len(field) == 6 and ".so" in field[5]}
    return sorted(path for path in mapped if "lib-dynload" not in path.parts)


def _add_library(archive: tarfile.TarFile, path: Path) -> None:
    """Add the library under its own name, and links with the names that other libraries use (`libz.so.1`)."""
    _add(archive, f"lib/{path.name}", path.read_bytes())
    family = path.parent.glob(f"{path.name.partition('.so')[0]}.so*")
    names = {link.name for link in family if link.resolve() == path.resolve()}
    if path.name.startswith("ld-"):
        names.add(Path(LOADER).name)
    for name in sorted(names - {path.name}):
        link = tarfile.TarInfo(f"lib/{name}")
        link.type, link.linkname = tarfile.SYMTYPE, path.name
        archive.addfile(link)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755
    archive.addfile(entry, io.BytesIO(content))


def _add_directory(archive: tarfile.TarFile, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
    archive.addfile(entry)


if __name__ == "__main__":
    sys.stdout.buffer.write(pack(*sys.argv[1:]))
