"""`pytest` and `make` of a bash line on all cores: run in a real bash, with programs that print their arguments."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.cpu_manager.environments.dop import parallel

MANY = ["-C", "a", "-kf", "b", "-I", "c", "V=1 2", "--eval", "d", "all", "-W", "e"]
"""Arguments of make; one of them is a goal."""
PRINTS = "import json, sys; print(json.dumps(sys.argv[1:]))"


class Shell:
    """A bash with a `make`, a `pytest` and a `python` that print their arguments, one list a line."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.programs = root / "bin"
        self.programs.mkdir()
        for name in ("make", "pytest", "py.test"):
            self.program(name, f"#!{self.programs}/python\n{PRINTS}\n")
        (self.programs / "python").symlink_to(sys.executable)  # outside its environment: that one has pytest-xdist
        package = root / "lib" / "pytest"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(PRINTS)
        self.env = {"PATH": f"{self.programs}:{os.environ['PATH']}", "PYTHONPATH": str(root / "lib")}

    def program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def with_xdist(self) -> Shell:
        about = self.root / "lib" / "pytest_xdist-3.6.1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pytest-xdist\nVersion: 3.6.1\n")
        return self

    def arguments(self, line: str, cores: int = 4) -> list[Any]:
        run = subprocess.run(
            ["/bin/bash", "-c", parallel(line, cores)],
            capture_output=True,
            text=True,
            check=True,
            env=self.env,
            cwd=self.root,
        )
        assert run.stderr == ""
        return [json.loads(output) for output in run.stdout.splitlines()]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


LINES = st.text(alphabet=st.sampled_from(" \n;&|<>(){}'\"`\\$#=-./:axj4![]*?~\t\r\0é")) | st.text()
MENTIONS = st.lists(
    LINES | st.sampled_from(["make", "pytest", "python -m pytest", "A=1", "-x", "&&", ";", "|", " ", "\n", "cd a"])
).map("".join)


@given(LINES.filter(lambda line: not any(name in line for name in ("make", "pytest", "py.test"))), st.integers(2, 64))
def test_a_line_without_placeholders_is_returned_unchanged(line: str, cores: int) -> None:
    assert parallel(line, cores) == line


@given(MENTIONS, st.integers(2, 64))
def test_a_line_is_changed_only_by_arguments_after_the_names(line: str, cores: int) -> None:
    put_in = re.compile(r" \$\((\{ .*?; \} 2>/dev/null </dev/null|case .*?; esac)\)", re.DOTALL)

    assert put_in.sub("", parallel(line, cores)) == line


@pytest.mark.parametrize(
    "line",
    [
        "echo make; echo pytest",
        "'make' all",
        "mak\\\ne all",
        "make -j2",
        "make -kj 2 all",
        "make '--jobs=3'",
        "MAKEFLAGS=-k make",
        "PATH=/opt/bin make",
        "make $TARGETS",
        "make clean all",
        "make clean all 2>/dev/null",
        "make -C sub -f Makefile clean V=1 all",
        "make -k clean -- -all",
        "make *.o",
        "make {clean,all}",
        "make -C {sub,all} one",
        "echo 'make",
        "cat <<END\nmake\nEND",
        "cat <<<make",
        "echo $(make)",
        "echo `make`",
        "(make)",
        "if make; then echo; fi",
        "for make in a; do make; done",
        "[[ a && make ]]",
        "case a in make) echo;; esac",
        "make() { echo; }",
        "{ make; }",
        "! make",
        "time make",
        "x=(make)",
        "echo ${x:-a; make}",
        "echo $'\\'; make",
        "# make",
        "echo >make -C a",
        "cmake .",
        "./remake",
        "pytest -n 2",
        "pytest -xn2",
        "pytest -n0",
        "pytest --numprocesses=2",
        "pytest -p no:xdist",
        "pytest --pdb tests",
        "pytest -xvs",
        "pytest --capture=no",
        "pytest --collect-only",
        "pytest --sw",
        "pytest $WHAT",
        "python -c pytest",
        "python -X dev -m pytest",
        "python -m pytest_watch",
        "coverage run -m pytest",
    ],
)
def test_a_line_with_its_own_width_or_that_cannot_be_read_stays_unchanged(line: str) -> None:
    assert parallel(line, 4) == line


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("make", [["-j4"]]),
        ("make -C 'a b' all>/dev/stdout", [["-j4", "-C", "a b", "all"]]),
        ("cd / && A=$HOME B='x y' make all 2>&1 | tail -1", [["-j4", "all"]]),
        ("make a;make b&&make c||make d\nmake e", [["-j4", "a"], ["-j4", "b"], ["-j4", "c"], ["-j4", "e"]]),
        ("# build it\nmake \\\n  a  # and that's it", [["-j4", "a"]]),
        (">/dev/stdout make a", [["-j4", "a"]]),
        ("true 'make' # not yet\nmake 'make'", [["-j4", "make"]]),
        ("echo '[]' &>/dev/null; make x", [["-j4", "x"]]),
        ("make -C a -kf b -I c V='1 2' --eval d all -W e", [["-j4", *MANY]]),
        ("make --directory=a --file b 'a*' 2>&1 1>/dev/stdout", [["-j4", "--directory=a", "--file", "b", "a*"]]),
        ("make -k; make -j2", [["-j4", "-k"], ["-j2"]]),
    ],
)
def test_make_runs_on_all_cores(shell: Shell, line: str, arguments: list[list[str]]) -> None:
    assert shell.arguments(line) == arguments


WORDS = st.lists(
    st.text(st.characters(codec="ascii", exclude_characters="$j\0"), max_size=6).map("V=".__add__), max_size=4
)


@settings(max_examples=40)
@given(st.lists(WORDS, min_size=1, max_size=3))
def test_arguments_reach_make_as_they_were_quoted(calls: list[list[str]]) -> None:
    line = "; ".join(shlex.join(["make", *words]) for words in calls)
    printed = subprocess.run(
        ["/bin/bash", "-c", f"make() {{ printf '%s\\0' \"$@\" ''; }}\n{parallel(line, 4)}"],
        capture_output=True,
        check=True,
    ).stdout

    assert printed.decode() == "".join(f"{word}\0" for words in calls for word in ["-j4", *words, ""])


@pytest.mark.parametrize("flags", ["-j2", "-k -j", "--jobs=2"])
@pytest.mark.parametrize("name", ["MAKEFLAGS", "GNUMAKEFLAGS"])
def test_a_width_in_the_shells_flags_of_make_is_kept(shell: Shell, name: str, flags: str) -> None:
    assert shell.arguments(f"export {name}='{flags}'\nmake all") == [["all"]]
    assert shell.arguments(f"export {name}=-k\nmake all") == [["-j4", "all"]]


@pytest.mark.parametrize(
    "call", ["pytest", "py.test", "python -m pytest", "bin/pytest", "A=1 pytest", "cd lib; pytest"]
)
def test_pytest_runs_on_all_cores_where_xdist_is(shell: Shell, call: str) -> None:
    assert shell.arguments(f"{call} -x 'a b'") == [["-x", "a b"]]
    assert shell.with_xdist().arguments(f"{call} -x 'a b'") == [["-n4", "-x", "a b"]]


def test_xdist_is_found_with_the_commands_own_variables(shell: Shell) -> None:
    shell.with_xdist()

    assert shell.arguments("PYTHONPATH=/nowhere pytest") == [[]]
    assert shell.arguments("PYTHONPATH= PYTHONPATH=$PWD/lib pytest") == [["-n4"]]
    assert shell.arguments("PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 pytest") == [[]]
    assert shell.arguments("PYTEST_ADDOPTS='-q -n 2' pytest") == [[]]
    assert shell.arguments("PYTEST_ADDOPTS=-q pytest") == [["-n4"]]


@pytest.mark.parametrize(
    ("name", "text", "spreads"),
    [
        ("pytest.ini", "[pytest]\naddopts = -q\n  -p no:xdist\n", False),
        ("pyproject.toml", '[tool.pytest.ini_options]\naddopts = "-q -n2"\n', False),
        ("pyproject.toml", '[tool.pytest.ini_options]\naddopts = ["-ra", "--strict-markers"]\n', True),
        ("pyproject.toml", '[tool.lint]\nargs = "-n 2"\n', True),
        ("setup.cfg", "[tool:pytest]\naddopts = -vs\n", False),
        ("tox.ini", "[pytest]\naddopts = -rs -v\n", True),
    ],
)
def test_a_width_in_pytests_configuration_is_respected(shell: Shell, name: str, text: str, spreads: bool) -> None:
    tests = shell.with_xdist().root / "project" / "tests"
    tests.mkdir(parents=True)
    (tests / "test_a.py").touch()
    (shell.root / "project" / name).write_text(text)
    width = ["-n4"] if spreads else []

    assert shell.arguments("cd project/tests && pytest") == [width]
    assert shell.arguments("pytest project/tests/test_a.py::test_b") == [[*width, "project/tests/test_a.py::test_b"]]
    assert shell.arguments("pytest bin") == [["-n4", "bin"]]


@pytest.mark.parametrize("interpreter", ["/bin/sh", "/usr/bin/env bash"])
def test_a_pytest_whose_python_is_not_named_stays_narrow(shell: Shell, interpreter: str) -> None:
    shell.with_xdist().program("pytest", f"#!{interpreter}\nprintf '[%s]\\n' $#\n")

    assert shell.arguments("pytest -x") == [[1]]


def test_a_function_of_that_name_stays_what_it_is(shell: Shell) -> None:
    line = "pytest -x"
    defined = "pytest() { echo [$#]; }; make() { echo [$#]; }"
    shell.with_xdist()

    run = subprocess.run(
        ["/bin/bash", "-c", f"{defined}\n{parallel(line, 4)}\n{parallel('make', 4)}"],
        capture_output=True,
        text=True,
        check=True,
        env=shell.env,
    )

    assert (run.stdout, run.stderr) == ("[1]\n[1]\n", "")


def test_a_shell_that_stops_at_everything_does_not_stop_at_the_question(shell: Shell) -> None:
    (shell.programs / "pytest").unlink()
    shell.program("pytest", "")
    strict = "set -eu -o pipefail; unset MAKEFLAGS; make a; pytest && echo '[]'"

    assert shell.arguments(strict) == [["-j4", "a"], []]
