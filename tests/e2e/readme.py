"""README.md as a program: its fenced blocks, executed as they are printed.

A shell block is a sequence of steps, separated by blank lines. Three conventions of the README are read from it:
``# -> TEXT`` shows a part of a step's output; ``NAME is the `id` in the answer`` names what later steps contain; and
a block belongs to the heading above it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from types import TracebackType

import pytest

from treadle.testing.servers import clean_environment

CHECKOUT = Path(__file__).parents[2]
PORT = 8700
"""The port in the README's commands."""
HEADING = re.compile(r"^#+ (.+)$")
SHOWN = re.compile(r"(?:^|\s)# -> (.+)$", re.MULTILINE)
NAMED = re.compile(r"\b([A-Z]{2,}) is the `id` in the answer")
END = "--- end of the step ---"
CURLRC = "silent\nshow-error\nfail-with-body\n"
"""A status of 400 or more fails the step; no progress bar in the output."""


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    heading: str
    language: str
    text: str

    def steps(self) -> list[str]:
        """Paragraphs of a shell block; a program in another language is one step."""
        if self.language == "bash":
            return self.text.strip().split("\n\n")
        return [f"{self.language} - <<'PROGRAM'\n{self.text}PROGRAM"]


def blocks(markdown: str) -> list[Block]:
    """Fenced blocks of a document, in order."""
    found: list[Block] = []
    heading, language, lines = "", None, [""]
    for line in markdown.splitlines():
        if line.startswith("```") and language is None:
            language, lines = line.removeprefix("```"), []
        elif line.startswith("```"):
            found.append(Block(heading, language or "", "".join(f"{text}\n" for text in lines)))
            language = None
        elif language is not None:
            lines.append(line)
        elif (match := HEADING.match(line)) is not None:
            heading = match[1]
    return found


def block(heading: str) -> Block:
    """The one block of README.md under this heading."""
    (found,) = (each for each in blocks((CHECKOUT / "README.md").read_text("utf-8")) if each.heading == heading)
    return found


class Shell:
    """One bash in the root of the checkout, for all blocks of a test."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        """``environ``: variables in addition to a clean environment. ``folder``: for curl's configuration."""
        (folder / ".curlrc").write_text(CURLRC)
        environ = {**clean_environment(), "HOME": str(folder), "CURL_HOME": str(folder), **environ}
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail"],
            cwd=CHECKOUT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._ids: dict[str, str] = {}

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bash.kill()
        self._bash.communicate()

    def follow(self, block: Block) -> None:
        """Execute every step of a block. Its commands must succeed and print what the block shows."""
        for step in block.steps():
            for name, found in self._ids.items():
                step = re.sub(rf"\b{name}\b", found, step)
            output = self._run(step)
            for shown in SHOWN.findall(step):
                assert shown in output, f"{step}\nshould print {shown}\nand printed\n{output}"
            for name in NAMED.findall(step):
                self._ids[name] = json.loads(output)["id"]

    def _run(self, step: str) -> str:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{{ {step}\n}} </dev/null\necho '{END}'\n")
        self._bash.stdin.flush()
        lines: list[str] = []
        for line in self._bash.stdout:
            before, end, _ = line.partition(END)
            lines.append(before)
            if end:
                return "".join(lines)
        raise AssertionError(f"{step}\nfailed:\n{''.join(lines)}")


@contextmanager
def readme_port() -> Iterator[None]:
    """Reserve the README's port on this machine: two tests of this user wait for each other."""
    lock = Path(tempfile.gettempdir(), f"treadle-readme-{os.getuid()}.lock")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with closing(socket()) as probe:
            taken = probe.connect_ex(("127.0.0.1", PORT)) == 0
        if taken and os.environ.get("TREADLE_REQUIRE_DOCKER"):
            pytest.fail(f"port {PORT} is in use; the README's commands need it")
        if taken:
            pytest.skip(f"port {PORT} is in use (a stack of your own?); the README's commands need it")
        yield
