"""Links between documents, and from documents to code, lead to files, and to functions in them."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)(?:#[^)]*)?\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
NAMING = re.compile(r"\[[^\]]*\]\(([^)\s#]+\.(?:py|lua))\)((?:(?:,| and)? `[\w.]+`)+)")
"""A link to code with names behind it: ``[intake.py](PATH) `Intake.submit`, `Intake.cancel` ``."""
POLICY_ROW = re.compile(r"^\| (?:`(\w+)`)? ?\| ((?:`\w+`(?:, )?)+) \|", re.MULTILINE)
"""A row of the table of packages and modules: package (empty: that of the row above), modules."""
MUST_NAME = {
    "ARCHITECTURE.md": ("Queues.enqueue", "schedule", "LocalSandbox.run", "compose"),
    "docs/tour.md": ("Queues.enqueue", "schedule", "LocalSandbox.run", "compose"),
}
"""Places where a request is queued, units are granted, a sandbox starts, an answer is composed."""


def links(text: str) -> list[str]:
    """Targets of links, without fragments; code blocks and addresses aside."""
    return [target for target in LINK.findall(FENCED.sub("", text)) if "://" not in target]


def names(text: str) -> list[tuple[str, str]]:
    """Pairs of a link to code and a name behind it."""
    return [
        (target, name)
        for target, quoted in NAMING.findall(FENCED.sub("", text))
        for name in re.findall(r"[\w.]+", quoted.replace(" and ", " "))
    ]


def defined(path: Path) -> set[str]:
    """Functions, classes and methods (``Class.method``) of a module of Python; functions of a Lua library."""
    text = path.read_text("utf-8")
    if path.suffix == ".lua":
        return set(
            re.findall(
                r"^(?:local function |redis\.register_function\W+(?:function_name = ')?)(\w+)", text, re.MULTILINE
            )
        )
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    found: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, definitions):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, definitions)}
    return found


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


def test_every_name_behind_a_link_is_defined_there() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {target} does not define {name}"
        for document in documents()
        for target, name in names(document.read_text("utf-8"))
        if name not in defined((document.parent / target).resolve())
    ]
    assert not broken, "\n".join(["", *broken])


@pytest.mark.parametrize("document", MUST_NAME)
def test_the_documents_show_where_the_main_steps_are(document: str) -> None:
    named = {name for _, name in names((ROOT / document).read_text("utf-8"))}
    assert named >= set(MUST_NAME[document])


def test_the_modules_of_the_policy_that_the_architecture_lists_exist() -> None:
    rows = POLICY_ROW.findall((ROOT / "ARCHITECTURE.md").read_text("utf-8"))
    package, missing = "", []
    for own, modules in rows:
        package = own or package
        paths = [ROOT / f"shared/policy/{package}/{name}.py" for name in re.findall(r"`(\w+)`", modules)]
        missing += [str(path.relative_to(ROOT)) for path in paths if not path.exists()]
    assert len(rows) > 15
    assert not missing, "\n".join(["", *missing])


@pytest.mark.parametrize(
    ("text", "found"),
    [("[a](b.md#c) [d](../e.py)", ["b.md", "../e.py"]), ("```\n[a](b)\n```", []), ("[a](http://localhost/)", [])],
)
def test_links_are_found(text: str, found: list[str]) -> None:
    assert links(text) == found


def test_names_are_found() -> None:
    text = "[a](a.py) `A.b`, `c` and `d` | [e](e.lua) `f`, then `g`; [h](h.py) does `i`; [j](j.md) `k`"
    assert names(text) == [("a.py", "A.b"), ("a.py", "c"), ("a.py", "d"), ("e.lua", "f")]


def test_definitions_are_found() -> None:
    assert {"links", "defined"} <= defined(Path(__file__))
    assert "Block.steps" in defined(ROOT / "tests/e2e/readme.py")
    assert "journal_actions" in defined(ROOT / "shared/bus/library/journal.lua")
