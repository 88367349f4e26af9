"""Trees in and out as tar archives. A child process does the work: it can be killed, or run out of memory, alone.

Only that child imports the archive modules.
"""

# Plain calls and no path objects: an agent starts in every environment.
# ruff: noqa: PTH103, PTH117, PTH119

import contextlib
import io
import os
import signal
import time
from collections.abc import Callable

from .acting import Action, ActionContext, ActionReply, error_text, failed
from .commands import unnamed
from .files import refused
from .processes import end_session

_DONE = 0
_FAILED = 1
_REFUSED = 2


class _TooLarge(Exception):
    pass


class _Bounded(io.RawIOBase):
    """A file that accepts at most `most` bytes."""

    def __init__(self, descriptor: int, most: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._left = most

    def writable(self) -> bool:
        return True

    def write(self, data: "bytes") -> int:  # type: ignore[override]
        self._left -= len(data)
        if self._left < 0:
            raise _TooLarge
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
        return len(data)


def pack(path: str, most: int, out: int) -> None:
    """Write a gzipped archive of a file or directory."""
    import gzip
    import tarfile

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        # The same archive wherever it is made: owners of the files are not part of it.
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = int(member.mtime)
        return member

    name = os.path.basename(os.path.normpath(path)) or "root"
    zipped = gzip.GzipFile("", "wb", 6, _Bounded(out, most), mtime=0)
    with zipped, tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.add(path, arcname=name, filter=plain)


def unpack(path: str, content: bytes, out: int) -> None:
    """Unpack an archive into a directory and write its number of files. Files without a time get the current one."""
    import tarfile

    os.makedirs(path, exist_ok=True)
    count, now = 0, time.time()
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:*") as archive:
        # Do not filter: members that later Pythons would refuse or change are the trainer's responsibility.
        archive.extraction_filter = lambda member, _: member
        for member in archive:
            if os.path.isabs(member.name) or ".." in member.name.split("/"):
                raise tarfile.TarError(f"{member.name} leads out of the directory")
            member.uid, member.gid = os.getuid(), os.getgid()
            member.uname = member.gname = ""
            member.mtime = member.mtime or now  # with time 0, files built from it would always look newer
            archive.extract(member, path)
            count += not member.isdir()
    os.write(out, str(count).encode())


class ArchiveAction(Action):
    """Packing or unpacking in a child of the agent."""

    def __init__(
        self, context: ActionContext, timeout_s: float, shown: str, work: "Callable[[int], None]", part: str = ""
    ) -> None:
        super().__init__(context, timeout_s)
        self._shown = shown
        self._part = part
        self._result = unnamed()
        try:
            self._pid = context.spawner.fork()
        except OSError as error:
            self._pid = 0
            os.close(self._result)
            self.finish(failed(error_text(error, "fork")))
            return
        if self._pid == 0:
            self._be_child(work)
        context.events.child(self._pid, self._ended)

    def _be_child(self, work: "Callable[[int], None]") -> None:
        code, failure = _FAILED, ""
        try:
            signal.set_wakeup_fd(-1)
            os.setsid()
            work(self._result)
            code = _DONE
        except _TooLarge:
            code = _REFUSED
        except OSError as error:
            failure = error_text(error, self._shown)
        except Exception as error:  # noqa: BLE001  # a broken archive raises many different exceptions
            failure = "not a tar archive: " + (str(error).splitlines() or [""])[0]
        finally:
            if failure:
                os.ftruncate(self._result, 0)
                os.pwrite(self._result, failure.encode("utf-8", "backslashreplace"), 0)
            os._exit(code)

    def _ended(self, status: int) -> None:
        size = os.fstat(self._result).st_size
        content = os.pread(self._result, size, 0)
        os.close(self._result)
        if not os.WIFEXITED(status):
            self.finish(failed(f"ended by signal {os.WTERMSIG(status)}"))
        elif os.WEXITSTATUS(status) == _REFUSED:
            self.finish(refused(f"the archive of {self._shown} is larger than is ever given"))
        elif os.WEXITSTATUS(status) != _DONE:
            self.finish(failed(content.decode() or "it failed"))
        elif self._part:
            reply = ActionReply(True, {"size": size})
            reply.parts.append((self._part, content))
            self.finish(reply)
        else:
            self.finish(ActionReply(True, {"files": int(content)}))

    def end(self) -> None:
        end_session(self._pid)
        with contextlib.suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)  # it may not have begun its session yet
