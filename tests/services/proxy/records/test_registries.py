"""Which registries an image may name, however its name is written."""

from __future__ import annotations

import pytest

from services.proxy.records.registries import Registries
from services.proxy.settings import ProxySettings
from shared.runtime.errors import BadRequest

DEFAULT = ProxySettings.model_validate({}).image_registries


@pytest.mark.parametrize(
    ("image", "allowed", "passes"),
    [
        ("local", "", True),
        ("python:3.11", DEFAULT, True),
        ("swebench/sweb.eval.x86_64.django:latest", DEFAULT, True),
        ("docker.io/library/python", DEFAULT, True),
        ("index.docker.io/library/python", DEFAULT, True),
        ("ghcr.io/org/image@sha256:" + "0" * 64, DEFAULT, True),
        ("GHCR.io/org/image", DEFAULT, True),
        ("169.254.169.254/latest", DEFAULT, False),
        ("10.0.0.7:5000/x", DEFAULT, False),
        ("localhost/x", DEFAULT, False),
        ("localhost:2375/x", DEFAULT, False),
        ("metadata.internal/x", DEFAULT, False),
        ("ghcr.io.evil.example/x", DEFAULT, False),
        ("ghcr.io:8080/x", DEFAULT, False),
        ("INTERNAL/x", DEFAULT, False),
        ("docker.io/evil.example/x", DEFAULT, False),
        ("docker.io/index.docker.io/evil.example/x", DEFAULT, False),
        ("sha256:" + "0" * 64, DEFAULT, False),
        ("sha256:abc", DEFAULT, False),
        ("a" * 64, DEFAULT, False),
        ("a" * 64, "*", True),
        ("python", "registry.example", False),
        ("registry.example:5000/x", "registry.example:5000, ghcr.io", True),
        ("10.0.0.7:5000/x", "*", True),
        ("python", "", False),
    ],
)
def test_an_image_comes_from_a_registry_that_the_operator_has_named(image: str, allowed: str, passes: bool) -> None:
    registries = Registries(allowed)
    if passes:
        registries.check([image])
        return
    with pytest.raises(BadRequest, match="PROXY_IMAGE_REGISTRIES"):
        registries.check(["local", image])
