"""Output of an action for trainers: bytes as text, or as base64 if requested (docs/environments.md)."""

from __future__ import annotations

import base64
from typing import Any


def rendered(output: dict[str, Any], parts: dict[str, bytes], encoding: str) -> dict[str, Any]:
    """Return an output and its parts, which are bytes, as one JSON-able output."""
    seen = dict(output)
    for name in ("stdout", "stderr", "output"):
        if name in parts:
            seen[name] = _text(parts[name], parts.get(f"{name}_tail", b""), int(output.get(f"{name}_dropped", 0)))
    if "archive" in parts:
        seen["archive"] = base64.b64encode(parts["archive"]).decode("ascii")
    if "content" in parts:
        seen["content"] = parts["content"].decode() if encoding == "utf-8" else _base64(parts["content"])
    return seen


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _text(head: bytes, tail: bytes, dropped: int) -> str:
    if not dropped:
        return (head + tail).decode(errors="replace")
    between = f"\n[... {dropped} bytes left out ...]\n"
    return head.decode(errors="replace") + between + tail.decode(errors="replace")
