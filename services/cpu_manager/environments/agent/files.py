"""File operations of the environment, done at once: each is bounded by the size of a frame."""

# Plain calls and no path objects: an agent starts in every environment.
# ruff: noqa: PTH101, PTH103, PTH105, PTH108, PTH110, PTH112, PTH116, PTH118, PTH120, PTH208

import os
import stat

from .acting import ActionReply, error_text, failed

_CHUNK = 1 << 20
_TYPES = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))


def read(path: str, shown: str, most: int) -> ActionReply:
    """Return a file's bytes; refuse more than `most`."""
    try:
        # Non-blocking, because it may be a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return failed("Not a regular file: " + shown)
            content = _read_up_to(descriptor, most + 1)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        return _failed(error, shown)
    if len(content) > most:
        return refused(f"{shown} is larger than {most} bytes")
    reply = ActionReply(True, {"size": len(content)})
    reply.parts.append(("content", content))
    return reply


def refused(reason: str) -> ActionReply:
    """Return a refusal: the result exceeds a limit."""
    reply = ActionReply(None, {"error": reason}, reason)
    reply.ended_by = "refused"
    return reply


def _failed(error: Exception, shown: str) -> ActionReply:
    return failed(error_text(error, shown) if isinstance(error, OSError) else f"{error}: {shown!r}")


def _read_up_to(descriptor: int, most: int) -> bytes:
    parts = []
    while most > 0:
        part = os.read(descriptor, min(most, _CHUNK))
        if not part:
            break
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def write(path: str, shown: str, content: bytes, mode: int, keep_mode: bool = False) -> ActionReply:
    """Replace a file atomically: readers see the old or the new one. Missing parent directories are created.

    `keep_mode`: keep the mode of an existing file.
    """
    try:
        path = os.path.realpath(path)  # a link keeps pointing to the file
        directory = os.path.dirname(path)
        if os.path.isdir(path):
            return failed("Is a directory: " + shown)
        if os.path.exists(path):
            before = os.stat(path).st_mode
            if not stat.S_ISREG(before):  # a device, a pipe
                return failed("Not a file to replace: " + shown)
            if keep_mode:
                mode = before & 0o777
        try:
            os.makedirs(directory, exist_ok=True)
        except FileExistsError:  # not a directory
            return failed("Not a directory: " + shown)
        beside = os.path.join(directory, f".treadle-{os.urandom(8).hex()}")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.chmod(beside, mode)
            os.replace(beside, path)
        except BaseException:
            os.unlink(beside)
            raise
    except (OSError, ValueError) as error:
        return _failed(error, shown)
    return ActionReply(True, {"size": len(content)})


def listing(path: str, shown: str, most: int) -> ActionReply:
    """Return a directory's entries, sorted by name."""
    entries = []
    try:
        names = sorted(os.listdir(os.fsencode(path)))
        for name in names[:most]:
            try:
                found = os.lstat(os.path.join(os.fsencode(path), name))
            except FileNotFoundError:
                continue  # it was removed in the meantime
            kind = next((word for test, word in _TYPES if test(found.st_mode)), "other")
            text = name.decode("utf-8", "backslashreplace")
            size = found.st_size if kind == "file" else 0
            entries.append({"name": text, "type": kind, "size": size, "mode": stat.S_IMODE(found.st_mode)})
    except (OSError, ValueError) as error:
        return _failed(error, shown)
    return ActionReply(True, {"entries": entries, "left_out": max(len(names) - most, 0)})
