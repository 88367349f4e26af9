"""The table of docs/sandbox.md compared with the outcomes of the attacks here, on every rung and as every user."""

import os
from pathlib import Path

import pytest

from tests.services.cpu_manager.sandbox import attack_table
from tests.services.cpu_manager.sandbox.attack_table import COLUMNS, DOCUMENTED, HELD
from tests.services.cpu_manager.sandbox.attacks import ATTACKS

_DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "sandbox.md"


def documented() -> dict[str, dict[str, str]]:
    """Return attack -> column -> entry of the document."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in _DOCUMENT.read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
    ]
    wanted = {what.aim for what in ATTACKS}
    return {aim: dict(zip(COLUMNS, words, strict=True)) for aim, *words in rows if aim in wanted}


def test_the_document_has_every_attack_as_held_or_documented() -> None:
    written = documented()
    assert list(written) == [what.aim for what in ATTACKS]
    for what in ATTACKS:
        assert written[what.aim] == {name: DOCUMENTED if name in what.documented else HELD for name in COLUMNS}


@pytest.mark.slow
def test_every_attack_ends_as_documented() -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("the attacks call the kernel by x86_64's numbers")
    found = attack_table.as_others()
    print(attack_table.table(found))  # noqa: T201  # pytest shows it when this fails
    if os.geteuid() == 0:
        assert set(found) >= {"root, namespaces", "root, Landlock", "user, namespaces", "user, Landlock"}
    written = documented()
    different = {
        (what.aim, name): outcomes[what.aim]
        for name, outcomes in found.items()
        for what in ATTACKS
        if attack_table.cell(what, name, outcomes[what.aim]) != written[what.aim][name]
    }
    assert different == {}
