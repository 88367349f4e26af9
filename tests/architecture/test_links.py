"""Links between documents, and from documents to code, lead somewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)(?:#[^)]*)?\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def links(text: str) -> list[str]:
    """Targets of links, without fragments; code blocks and addresses aside."""
    return [target for target in LINK.findall(FENCED.sub("", text)) if "://" not in target]


def documents() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split()]


def test_every_link_leads_to_a_file() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in documents()
        for target in links(document.read_text("utf-8"))
        if not (document.parent / target).exists()
    ]
    assert not broken, "\n".join(["", *broken])


@pytest.mark.parametrize(
    ("text", "found"),
    [("[a](b.md#c) [d](../e.py)", ["b.md", "../e.py"]), ("```\n[a](b)\n```", []), ("[a](http://localhost/)", [])],
)
def test_links_are_found(text: str, found: list[str]) -> None:
    assert links(text) == found
