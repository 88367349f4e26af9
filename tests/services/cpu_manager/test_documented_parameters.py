"""The table of parameters in docs/graders.md against the schemas of the proxy and the nodes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import FieldInfo, fields

from services.cpu_manager.kinds import PLAIN, StdioTest

GRADERS = Path(__file__).parents[3] / "docs" / "graders.md"


def documented() -> dict[str, dict[str, str]]:
    """Kind -> parameter -> the text of its default; empty: it has none."""
    section = GRADERS.read_text().split("## Parameters\n")[1].split("\n## ")[0]
    found: dict[str, dict[str, str]] = {}
    kind = ""
    for row in section.splitlines():
        if not row.startswith("|") or row.startswith(("| kind |", "| --- |")):
            continue
        named, parameter, default, _ = (cell.strip().strip("`") for cell in row.strip("|").split("|", 3))
        kind = named or kind
        found.setdefault(kind, {})[parameter] = default
    return found


def default_of(field: FieldInfo) -> str:
    if field.required:
        return ""
    made = field.default_factory is not msgspec.NODEFAULT
    return msgspec.json.encode(field.default_factory() if made else field.default).decode()


def test_every_kind_and_no_other_is_documented() -> None:
    assert list(documented()) == list(PLAIN)


@pytest.mark.parametrize("kind", PLAIN)
def test_each_parameter_is_documented_with_its_default_and_in_its_place(kind: str) -> None:
    documented_defaults = {name: default for name, default in documented()[kind].items() if "[]" not in name}
    assert list(documented_defaults.items()) == [
        (field.encode_name, default_of(field)) for field in fields(PLAIN[kind].params)
    ]


def test_fields_of_a_stdio_test_are_documented() -> None:
    documented_defaults = {name: default for name, default in documented()["code.stdio"].items() if "[]" in name}
    assert documented_defaults == {f"tests[].{field.encode_name}": default_of(field) for field in fields(StdioTest)}
