"""Requests that SWE-ReX's client sends, and errors that it understands (swe-rex 1.4, `runtime/{abstract,remote}.py`).

As tolerant as the original: unknown fields are ignored.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import msgspec

from services.proxy.http.replies import Reply
from shared.runtime.errors import BadRequest

_encoder = msgspec.json.Encoder()

RAISED = 511
"""The status with which the client reads an exception from the body and raises it."""


class CreateSession(msgspec.Struct, frozen=True, kw_only=True):
    """Start a shell."""

    session: str = "default"
    startup_source: list[str] = []
    startup_timeout: float = 1.0
    session_type: Literal["bash"] = "bash"


class BashAction(msgspec.Struct, frozen=True, kw_only=True, tag_field="action_type", tag="bash"):
    """A command in a shell."""

    command: str
    session: str = "default"
    timeout: float | None = None
    is_interactive_command: bool = False
    is_interactive_quit: bool = False
    check: Literal["silent", "raise", "ignore"] = "raise"
    error_msg: str = ""
    expect: list[str] = []


class BashInterruptAction(msgspec.Struct, frozen=True, kw_only=True, tag_field="action_type", tag="bash_interrupt"):
    """Interrupt the command that a shell runs."""

    session: str = "default"


class CloseSession(msgspec.Struct, frozen=True, kw_only=True):
    """End a shell."""

    session: str = "default"
    session_type: Literal["bash"] = "bash"


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command outside any shell session, as `subprocess.run` takes it."""

    command: str | list[str]
    timeout: float | None = None
    shell: bool = False
    check: bool = False
    error_msg: str = ""
    env: dict[str, str] | None = None
    cwd: str | None = None
    merge_output_streams: bool = False


class ReadFile(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters like those of `Path.read_text`."""

    path: str
    encoding: str | None = None
    errors: str | None = None


class WriteFile(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters like those of `Path.write_text`."""

    content: str
    path: str


class Upload(NamedTuple):
    """The fields of an upload's form."""

    content: bytes
    target_path: str
    unzip: bool


FORMS = (CreateSession, CloseSession, Command, ReadFile, WriteFile)
"""Types for the OpenAPI document, in addition to the two actions of a session."""


class Raised(Exception):
    """An exception that the client raises, named by its class path."""

    def __init__(self, class_path: str, message: str, **extra_info: str) -> None:
        super().__init__(message)
        self.class_path = class_path
        self.extra_info = extra_info

    def reply(self) -> Reply:
        """Return the exception in the client's format."""
        transfer = {
            "message": str(self), "class_path": self.class_path, "traceback": "", "extra_info": self.extra_info
        }  # fmt: skip
        return Reply(RAISED, _encoder.encode({"swerexception": transfer}))


def swerex_error(name: str, message: str, **extra_info: str) -> Raised:
    """Return one of SWE-ReX's own exceptions."""
    return Raised(f"swerex.exceptions.{name}", message, **extra_info)


_OS_ERRORS = {
    "No such file or directory": "FileNotFoundError",
    "No such directory": "FileNotFoundError",
    "Is a directory": "IsADirectoryError",
    "Not a regular file": "IsADirectoryError",
    "Not a directory": "NotADirectoryError",
    "Permission denied": "PermissionError",
}
"""Beginning of an environment's error text -> the exception that Python would raise."""


def os_error(said: str) -> Raised:
    """Return the exception for a failed file operation."""
    return Raised(f"builtins.{_OS_ERRORS.get(said.partition(': ')[0], 'OSError')}", said)


_BOUNDARY = re.compile(r'multipart/form-data\s*;.*?boundary="?([^";,]{1,200})"?', re.IGNORECASE)
_NAME = re.compile(r';\s*name="([^"]*)"', re.IGNORECASE)
_MOST_HEAD = 4 << 10
_MOST_FIELDS = 64


YES_OR_NO = {"true": True, "false": False, "True": True, "False": False, "1": True, "0": False} | {
    "on": True, "off": False, "yes": True, "no": False
}  # fmt: skip
"""Accepted values of a boolean form field."""


def decode_upload(content_type: str, body: bytes) -> Upload:
    """Decode an upload's form.

    Raises:
        BadRequest: it is not a form, a field is missing or invalid, or it is too large.
    """
    if (found := _BOUNDARY.match(content_type)) is None:
        raise BadRequest(what="send the upload as multipart/form-data")
    fields = _fields(found[1].encode("latin-1"), body)
    for name in ("file", "target_path"):
        if name not in fields:
            raise BadRequest(what=f"the form has no field {name!r}")
    try:
        target = fields["target_path"].decode()
    except UnicodeDecodeError as error:
        raise BadRequest(what="target_path is not UTF-8") from error
    unzip = fields.get("unzip", b"false").decode("latin-1")
    if unzip not in YES_OR_NO:
        raise BadRequest(what=f"unzip is one of {', '.join(YES_OR_NO)}, not {unzip[:20]!r}")
    return Upload(fields["file"], target, YES_OR_NO[unzip])


def _fields(boundary: bytes, body: bytes) -> dict[str, bytes]:
    """Return each named part's content, in one pass."""
    delimiter = re.escape(b"\r\n--" + boundary) + rb"(?=--|[ \t]*\r\n)"
    parts = re.split(delimiter, b"\r\n" + body, maxsplit=_MOST_FIELDS + 2)
    if len(parts) > _MOST_FIELDS + 2:
        raise BadRequest(what=f"the form has more than {_MOST_FIELDS} fields")
    fields: dict[str, bytes] = {}
    for part in parts[1:-1]:
        head, blank, content = part.partition(b"\r\n\r\n")
        if len(head) > _MOST_HEAD:
            raise BadRequest(what=f"the head of a part of the form takes more than {_MOST_HEAD} bytes")
        named = _name(head.decode("latin-1"))
        if named is not None and blank:
            fields[named] = content
    return fields


def _name(head: str) -> str | None:
    """Return the name in a part's headers."""
    for line in head.split("\r\n"):
        if line.lower().startswith("content-disposition:"):
            named = _NAME.search(line)
            return named[1] if named is not None else None
    return None
