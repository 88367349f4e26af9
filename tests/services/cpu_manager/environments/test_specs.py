"""Invalid environments are refused by the proxy, with the types that the node reads."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.api.trajectories import TrajectoryRequest
from shared.messages.environments import MOST_VALUE, EnvironmentSpec
from shared.runtime.errors import BadRequest
from shared.runtime.validation import decoded


def opened(**environment: Any) -> TrajectoryRequest:
    return decoded(msgspec.json.Decoder(TrajectoryRequest), msgspec.json.encode({"environment": environment}))


@pytest.mark.parametrize(
    ("environment", "where"),
    [
        ({"env": {"A": "x\0y"}}, "env"),
        ({"env": {"A": "\n\0\n"}}, "env"),
        ({"env": {"A\0": "x"}}, "env"),
        ({"env": {"A": "x" * (MOST_VALUE + 1)}}, "env"),
        ({"workdir": "a\0b"}, "workdir"),
        ({"workdir": "a\n\0"}, "workdir"),
        ({"workdir": "x" * 4097}, "workdir"),
    ],
)
def test_text_that_no_program_can_be_given_is_refused(environment: dict[str, Any], where: str) -> None:
    with pytest.raises(BadRequest, match=rf"environment\.{where}"):
        opened(**environment)


@pytest.mark.parametrize("value", ["", "\n", "grün\n\n", "two\nlines", "\x01\x7f\ufffd", "x" * MOST_VALUE])
def test_any_other_text_is_a_value(value: str) -> None:
    assert opened(env={"A": value}).environment.env == {"A": value}


def test_an_environment_that_asks_for_no_model_is_encoded_as_before() -> None:
    assert msgspec.json.encode(EnvironmentSpec()) == b"{}"
    assert msgspec.json.encode(EnvironmentSpec(model=True)) == b'{"model":true}'
