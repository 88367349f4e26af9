"""Registries that images may come from. Container engines call them, as root, from the operator's own network."""

from __future__ import annotations

from collections.abc import Iterable

from shared.api.images import is_image_id, registry_of
from shared.messages.environments import LOCAL
from shared.runtime.errors import BadRequest

ANY = "*"


class Registries:
    """The operator's list of registries."""

    def __init__(self, allowed: str) -> None:
        """`allowed`: names separated by commas, with a port where they have one; `*` allows all."""
        self._allowed = frozenset(name.strip().lower() for name in allowed.split(",") if name.strip())

    def check(self, images: Iterable[str]) -> None:
        """Accept images of allowed registries, and `local`.

        Raises:
            BadRequest: an image's registry is not on the list, or the image is an id, which may be any local image.
        """
        for image in images:
            if is_image_id(image) and ANY not in self._allowed:
                raise BadRequest(
                    what=f"{image[:20]!r} is an image id, which has no registry: write the image's name (a digest may "
                    "follow it), or allow all with PROXY_IMAGE_REGISTRIES=*"
                )
            registry = registry_of(image).lower()
            if image == LOCAL or ANY in self._allowed or registry in self._allowed:
                continue
            known = ", ".join(sorted(self._allowed)) or "none"
            raise BadRequest(
                what=f"images may not come from {registry!r}: allowed registries are {known} (PROXY_IMAGE_REGISTRIES)"
            )
