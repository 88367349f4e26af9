"""Names of container images, as engines list them: one name for all spellings of the same image."""

from __future__ import annotations

import re
from typing import Final

DOCKER_HUB: Final = "docker.io"
_ID: Final = re.compile(r"sha256:[0-9a-fA-F]+|[0-9a-fA-F]{64}")
_HUB: Final = ("docker.io/", "index.docker.io/", "registry-1.docker.io/")


def familiar(image: str) -> str:
    """The name in an engine's list: `python` and `docker.io/library/python` are `python:latest`.

    A digest decides alone; a tag beside it is dropped, as engines do.
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
    """Does an engine take this for the id of an image that it has, or for a prefix of one?

    `sha256:` alone begins an id; without it an engine looks for a name first, and takes 64 digits for an id.
    """
    return _ID.fullmatch(image) is not None


def registry_of(image: str) -> str:
    """Host of the registry that an image is pulled from.

    `docker.io/evil.example/x` counts as `evil.example`, because its familiar name has no `docker.io`.
    """
    head, slash, rest = image.partition("/")
    while slash and f"{head}/" in _HUB:
        head, slash, rest = rest.partition("/")
    is_host = "." in head or ":" in head or head == "localhost" or head != head.lower()
    return head if slash and is_host else DOCKER_HUB
