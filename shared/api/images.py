"""Names of container images: one name for all spellings of the same image, as engines list it."""

from __future__ import annotations

import re
from typing import Final

DOCKER_HUB: Final = "docker.io"
_ID: Final = re.compile(r"sha256:[0-9a-fA-F]+|[0-9a-fA-F]{64}")
_HUB: Final = ("docker.io/", "index.docker.io/", "registry-1.docker.io/")


def familiar(image: str) -> str:
    """Return the name in an engine's list: `python` and `docker.io/library/python` are `python:latest`.

    A tag beside a digest is dropped, as engines do.
    """
    name, at, digest = image.partition("@")
    for hub in _HUB:
        if name.startswith(hub):
            name = name.removeprefix(hub)
    if registry_of(name) == DOCKER_HUB:
        name = name.removeprefix("library/")
    head, slash, last = name.rpartition("/")
    repository, colon, tag = last.partition(":")
    if at:
        return f"{head}{slash}{repository}@{digest}"
    return f"{head}{slash}{repository}:{tag if colon else 'latest'}"


def is_image_id(image: str) -> bool:
    """Return whether an engine treats this as the id of an existing image, or as a prefix of one.

    `sha256:` begins an id. Otherwise an engine searches for a name first, and treats 64 digits as an id.
    """
    return _ID.fullmatch(image) is not None


def registry_of(image: str) -> str:
    """Return the host of the registry from which an image is pulled.

    `docker.io/evil.example/x` counts as `evil.example`, because its familiar name has no `docker.io`.
    """
    head, slash, rest = image.partition("/")
    while slash and f"{head}/" in _HUB:
        head, slash, rest = rest.partition("/")
    is_host = "." in head or ":" in head or head == "localhost" or head != head.lower()
    return head if slash and is_host else DOCKER_HUB
