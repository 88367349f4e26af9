"""Requests to an agent for each kind of action, with the most bytes that a reply may have."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import msgspec

from services.cpu_manager.kinds import EnvBash, EnvDownload, EnvExec, EnvList, EnvRead, EnvUpload, EnvWrite
from shared.kinds.spec import Params
from shared.messages.environments import Encoding

_OPS: Final = {
    "env.exec": "exec",
    "env.bash": "bash",
    "env.read": "read",
    "env.write": "write",
    "env.upload": "upload",
    "env.download": "download",
    "env.list": "list",
    "env.close_session": "close_session",
}
_MODE: Final = 0o644
"""Mode of a new file."""
_ENTRY: Final = 1200
"""Bytes of one entry of a listing: a name of 255 bytes, each escaped."""


def request_of(kind: str, params: Params, most_bytes: int) -> tuple[dict[str, Any], bytes, int]:
    """Return the request, its raw bytes, and the most bytes of a reply; `most_bytes` for files and archives.

    Raises:
        ValueError: a base64 text is malformed.
    """
    request: dict[str, Any] = {"op": _OPS[kind], **msgspec.structs.asdict(params)}
    request.pop("literal", None)  # already applied
    body, most = b"", most_bytes
    if isinstance(params, EnvExec):
        body, most = (request.pop("stdin") or "").encode(), 2 * params.output_bytes
    elif isinstance(params, EnvBash):
        most = params.output_bytes
    elif isinstance(params, EnvWrite):
        body = _bytes(request.pop("content"), request.pop("encoding"))
        # Compatible with an agent of an earlier version, which a container may have.
        request["keep_mode"], request["mode"] = params.mode is None, _MODE if params.mode is None else params.mode
    elif isinstance(params, EnvUpload):
        body = _bytes(request.pop("archive"), "base64")
    elif isinstance(params, EnvList):
        most = params.most * _ENTRY
    elif isinstance(params, EnvRead | EnvDownload):
        request["most"] = most_bytes
    return request, body, most


def _bytes(text: str, encoding: Encoding) -> bytes:
    if encoding == "utf-8":
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error
