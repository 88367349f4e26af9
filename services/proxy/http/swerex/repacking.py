"""Conversion of SWE-ReX's zip archives to the tar archives that environments unpack."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile

from services.proxy.http.swerex.forms import Raised

MOST_BYTES = 256 << 20
"""Bytes of all files, unpacked."""
MOST_FILES = 20_000
_FILE, _FOLDER = 0o644, 0o755
_NO_TIME = 0
"""The environment sets its own time. Without times the same upload gives the same archive, so it can be repeated."""


class _Bounded(io.BytesIO):
    """A buffer of at most `most` bytes."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def write(self, data: bytes) -> int:  # type: ignore[override]  # gzip writes nothing else
        if self.tell() + len(data) > self._most:
            raise Raised("builtins.ValueError", f"the files take more than {self._most} bytes, packed: upload fewer")
        return super().write(data)


def to_tar(archive: bytes, most: int) -> bytes:
    """Return the same files as a gzipped tar archive of at most `most` bytes.

    Takes 1 s per 20 MB. Memory: the result and one chunk of a file. Names are converted as `zipfile` extracts them, so
    nothing is outside the target. Links become files.

    Raises:
        Raised: it is not a zip archive, or it is too large, unpacked or packed again.
    """
    out = _Bounded(most)
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as source:
            members = source.infolist()
            size = sum(member.file_size for member in members)
            if size > MOST_BYTES or len(members) > MOST_FILES:
                found = f"{len(members)} files of {size} bytes"
                raise Raised("builtins.ValueError", f"more than {MOST_FILES} files or {MOST_BYTES} bytes: {found}")
            zipped = gzip.GzipFile("", "wb", 1, out, mtime=_NO_TIME)
            with zipped, tarfile.open(fileobj=zipped, mode="w") as target:
                for member in members:
                    _add(source, member, target)
    except Raised:
        raise
    except Exception as error:  # broken, encrypted and unusual archives raise many types of exceptions
        raise Raised("zipfile.BadZipFile", f"the archive cannot be read: {error}") from error
    return out.getvalue()


def _add(source: zipfile.ZipFile, member: zipfile.ZipInfo, target: tarfile.TarFile) -> None:
    name = "/".join(part for part in member.filename.split("/") if part not in ("", ".", ".."))
    if not name:
        return
    info = tarfile.TarInfo(name)
    info.mtime = _NO_TIME
    mode = member.external_attr >> 16 & 0o777
    if member.is_dir():
        info.type, info.mode = tarfile.DIRTYPE, mode or _FOLDER
        target.addfile(info)
        return
    info.size, info.mode = member.file_size, mode or _FILE
    with source.open(member) as content:
        target.addfile(info, content)
