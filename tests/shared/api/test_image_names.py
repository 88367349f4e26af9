"""One name for all spellings of an image."""

import pytest

from shared.api.images import familiar, registry_of


@pytest.mark.parametrize(
    ("image", "name", "registry"),
    [
        ("python", "python:latest", "docker.io"),
        ("python:3.11", "python:3.11", "docker.io"),
        ("library/python", "python:latest", "docker.io"),
        ("docker.io/library/python:3.11", "python:3.11", "docker.io"),
        ("index.docker.io/a/b", "a/b:latest", "docker.io"),
        ("a/b:1", "a/b:1", "docker.io"),
        ("ghcr.io/a/b", "ghcr.io/a/b:latest", "ghcr.io"),
        ("localhost/b:1", "localhost/b:1", "localhost"),
        ("127.0.0.1:5000/b", "127.0.0.1:5000/b:latest", "127.0.0.1:5000"),
        ("docker.io/ghcr.io/a/b", "ghcr.io/a/b:latest", "ghcr.io"),
        ("a/b:1@sha256:00ff", "a/b@sha256:00ff", "docker.io"),
        ("r.example:5000/a@sha256:00ff", "r.example:5000/a@sha256:00ff", "r.example:5000"),
    ],
)
def test_an_image_has_one_name_and_one_registry(image: str, name: str, registry: str) -> None:
    assert familiar(image) == name
    assert familiar(name) == name
    assert registry_of(image) == registry
