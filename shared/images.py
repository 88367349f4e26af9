"""Names of container images, as engines list them: one name for all spellings of the same image."""

from __future__ import annotations

from typing import Final

DOCKER_HUB: Final = "docker.io"
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


def registry_of(image: str) -> str:
    """Host of the registry that an image is pulled from."""
    head, slash, _ = image.partition("/")
    is_host = "." in head or ":" in head or head == "localhost" or head != head.lower()
    if slash and is_host and f"{head}/" not in _HUB:
        return head
    return DOCKER_HUB
