"""A command without a shell: its own session, its input a file, its outputs separate."""

# Plain calls and no path objects: an agent starts in every environment.
# ruff: noqa: PTH112, PTH118

import os

from .acting import Action, ActionContext, ActionReply, failed
from .capture import OutputBuffer, Pipe
from .processes import end_session, exit_code

_CANNOT_RUN = 126
_NOT_FOUND = 127
_folder = -1


def keep_files_in(folder: int) -> None:
    """Create unnamed files in this open directory from now on, because memory files are refused here."""
    global _folder  # noqa: PLW0603  # one agent a process
    _folder = folder


def unnamed() -> int:
    """Return an empty unnamed file, in memory if this Python supports it."""
    if _folder >= 0:
        return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=_folder)
    if hasattr(os, "memfd_create"):
        return os.memfd_create("treadle")
    import tempfile  # before Python 3.8

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def held(content: bytes) -> int:
    """Return a descriptor of an unnamed file with this content, at its start."""
    if not content:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    descriptor = unnamed()
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class CommandAction(Action):
    """Runs from its first process's start to that process's end. Its background processes continue."""

    def __init__(self, context: ActionContext, request: "dict[str, object]", stdin: bytes) -> None:
        super().__init__(context, float(str(request["timeout_s"])))
        self._pid = 0
        self._pipes: dict[str, Pipe] = {}
        argv = list(map(str, request["argv"]))  # type: ignore[call-overload]
        cwd = os.path.join(context.cwd, str(request["cwd"]))
        env = dict(context.env)
        env.update(request["env"])  # type: ignore[call-overload]
        if "\0" in cwd or not os.path.isdir(cwd):  # before Python 3.8 isdir raises for NUL
            self.finish(
                failed(
                    "No such directory: " + (str(request["cwd"]) or cwd), exit_code=_CANNOT_RUN, stdout="", stderr=""
                )
            )
            return
        try:
            self._start(argv, cwd, env, stdin, int(str(request["output_bytes"])))
        except (OSError, ValueError) as error:
            missing = isinstance(error, FileNotFoundError)
            text = getattr(error, "strerror", None) or str(error)
            code = _NOT_FOUND if missing else _CANNOT_RUN
            self.finish(failed(f"{text}: {argv[0]}", exit_code=code, stdout="", stderr=""))

    def _start(self, argv: "list[str]", cwd: str, env: "dict[str, str]", stdin: bytes, limit: int) -> None:
        descriptors = [held(stdin)]
        try:
            for name in ("stdout", "stderr"):
                reader, writer = os.pipe()
                descriptors.append(writer)
                self._pipes[name] = Pipe(reader, OutputBuffer(limit))
            stdin_, stdout, stderr = descriptors
            self._pid = self.context.spawner.spawn(argv, cwd, env, (stdin_, stdout, stderr))
        except BaseException:
            for pipe in self._pipes.values():
                os.close(pipe.descriptor)
            raise
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        for pipe in self._pipes.values():
            self.context.events.pipe(pipe)
        self.context.events.child(self._pid, self._ended)

    def _ended(self, status: int) -> None:
        reply = ActionReply(os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0, {"exit_code": exit_code(status)})
        if not reply.passed:
            reply.reason = f"exit code {exit_code(status)}"
        if self.ended_by != "done":
            reply.output["exit_code"] = None
        for name, pipe in self._pipes.items():
            pipe.drain()
            take(reply, name, pipe)
        self.finish(reply)

    def end(self) -> None:
        end_session(self._pid)


def take(reply: ActionReply, name: str, pipe: Pipe) -> None:
    """Move the contents of a pipe's capture into the reply. Later output is dropped."""
    assert pipe.capture is not None
    head, tail = pipe.capture.halves()
    reply.parts += [(name, head), (name + "_tail", tail)]
    reply.output[name + "_dropped"] = pipe.capture.dropped
    pipe.capture = None
