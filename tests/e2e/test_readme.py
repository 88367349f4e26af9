"""The commands of README.md, executed word by word; those for containers in `test_stack_in_containers.py`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.readme import CHECKOUT, Block, Shell, block, blocks, readme_port

ON_THIS_MACHINE = (
    "Start the mesh and grade a file",
    "A training step, in six calls",
    "An episode with tools",
    "From Python",
    "Stop it",
)
IN_CONTAINERS = "In containers"
NOT_EXECUTED = {
    "See it work": "`make test` contains this test; tests/e2e/test_grade.py runs `treadle demo`",
    "How many cores": "twelve minutes; tests/treadle/lab/evaluations runs both commands with less work",
}


needs_curl = pytest.mark.skipif(
    shutil.which("curl") is None and not os.environ.get("TREADLE_REQUIRE_DOCKER"),
    reason="curl is not installed: apt-get install curl",
)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with Shell(tmp_path, {}) as shell:
        yield shell


@needs_curl
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_readme_is_followed_on_this_machine(stack_home: Path, tmp_path: Path) -> None:
    environ = {"TREADLE_HOME": str(stack_home), "PYTHON": os.environ.get("PYTHON", "python3")}
    with readme_port(), Shell(tmp_path, environ) as shell:
        try:
            for heading in ON_THIS_MACHINE:
                shell.follow(block(heading))
        finally:
            with Shell(tmp_path, environ) as last:
                last.follow(Block("", "bash", ".venv/bin/treadle down"))


def test_every_block_is_executed_or_has_a_reason() -> None:
    found = blocks((CHECKOUT / "README.md").read_text("utf-8"))
    assert {each.language for each in found} <= {"bash", "python"}
    assert sorted(each.heading for each in found) == sorted([*ON_THIS_MACHINE, IN_CONTAINERS, *NOT_EXECUTED])


def test_blocks_and_their_steps_are_found() -> None:
    (shell, program) = blocks("# A\n```bash\n# one\na\n\nb\n```\n## B\ntext\n```python\nx = 1\n\nprint(x)\n```\n")
    assert (shell.heading, shell.steps()) == ("A", ["# one\na", "b"])
    assert (program.heading, program.steps()) == ("B", ["python - <<'PROGRAM'\nx = 1\n\nprint(x)\nPROGRAM"])


def test_an_id_of_an_answer_is_in_later_steps(shell: Shell) -> None:
    named = '# THING is the `id` in the answer\necho \'{"id": "t1"}\''
    shell.follow(Block("", "bash", f"{named}\n\necho /things/THING  # -> /things/t1\n"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo yes  # -> no", "should print no\nand printed\nyes"),
        ("echo a\n\necho before; false; echo after", "failed:\nbefore\n$"),
        ("exit 0", "failed"),
        pytest.param("curl http://127.0.0.1:1/", "failed:\ncurl: \\(7\\)", marks=needs_curl),
    ],
)
def test_a_readme_that_does_not_work_fails(shell: Shell, text: str, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        shell.follow(Block("", "bash", text))
