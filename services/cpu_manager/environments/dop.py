"""Use of the granted cores by an action in an environment: its degree of parallelism (ARL-Tangram §4.1).

- `{dop}` is replaced by their number in a bash line, and in the words and variables of a command, but not in `literal`
  ones.
- `TREADLE_DOP` is that number for what a command starts, and for what a bash line with more than one core starts.
- A bash line with more than one core runs `pytest` and `make` on that many: `pytest -n 4` if xdist is installed, and
  `make -j4`.

Law of the last: the line keeps its meaning. So only plain lists of simple commands are changed, such as
`cd x && A=1 pytest -x | tail`, and of these only commands whose words can all be read here and that contain no width
and nothing that forbids one. Any other line (open quotes, heredocs, substitutions, compound commands) stays unchanged.
The only change is one word after a command's name. The shell computes that word when it gets there; it is empty if
xdist must not be used (`xdist_probe`) or MAKEFLAGS already has a width.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Final

import msgspec

from services.cpu_manager.environments import xdist_probe
from services.cpu_manager.kinds import EnvBash, EnvExec
from shared.kinds.spec import PLACE, Params

VARIABLE: Final = "TREADLE_DOP"

_TOKEN: Final = re.compile(
    r"""
      (?P<blank> (?: [ \t] | \\\n )+ | \#[^\n]* )
    | (?P<redirection> &>>? | <(?!<)[>&]? | >[>&|]? )
    | (?P<end> && | \|\| | \|& | [;&|\n] )
    | (?P<word> (?: [^ \t\n;&|<>()'"`\\$]
                  | \\[\s\S]
                  | \$(?= \w | [?\#@*!-] | \{\w+\} )
                  | '[^']*'
                  | "(?: [^"`\\$] | \\[\s\S] | \$(?= \w | [?\#@*!-] | \{\w+\} ) )*"
                )+ )
    """,
    re.VERBOSE,
)
"""A backquote, a parenthesis or another kind of `$` outside single quotes is not a token."""

_COMPOUND: Final = re.compile(
    r"[!{}]|\[\[|case|coproc|do|done|elif|else|esac|fi|for|function|if|select|then|time|until|while"
)
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*\+?=")
_DECIDES: Final = re.compile(r"(PATH|(GNU)?MAKEFLAGS)\+?=")
"""Variables that, set for one command, select the program or the width: the word is computed without them."""

_PYTEST: Final = re.compile(r"(?:[\w./+-]*/)?(?:pytest|py\.test)")
_PYTEST_OWN: Final = re.compile(xdist_probe.DECIDED)
_PYTHON: Final = re.compile(r"(?:[\w./+-]*/)?python[\d.]*")
_FOUND: Final = "__treadle_python"
"""A variable used in the substitution: the first line of the script `pytest`, which names its Python."""
_MAKE: Final = re.compile(r"(?:[\w./+-]*/)?g?make")
_MAKE_OWN: Final = re.compile(r"-[^-]*j|--jobs")
_MAKE_VALUE: Final = re.compile(
    r"-[^-CfIoWE]*[CfIoWE]"
    r"|--(directory|file|makefile|include-dir|old-file|assume-old|what-if|new-file|assume-new|eval)"
)
"""Options whose value is the next word."""
_SEVERAL: Final = re.compile(r"[*?\[{]")
"""Characters that a shell may expand to several words, unless quoted."""
_QUOTED: Final = re.compile(r"""\\[\s\S]|'[^']*'|"(?:[^"\\]|\\[\s\S])*\"""")

Words = list[re.Match[str]]
"""The words of a simple command."""


def with_dop(params: Params, cores: int) -> Params:
    """Return the parameters with the number of cores filled in; parameters of other kinds unchanged."""
    width = str(cores)
    match params:
        case EnvExec(argv=argv, env=env, literal=literal):
            if not literal:
                argv = [word.replace(PLACE, width) for word in argv]
                env = {name: value.replace(PLACE, width) for name, value in env.items()}
            return msgspec.structs.replace(params, argv=argv, env={VARIABLE: width, **env})
        case EnvBash(line=line, literal=literal):
            line = line if literal else line.replace(PLACE, width)
            return msgspec.structs.replace(
                params, line=_with_variable(parallel(line, cores), width) if cores > 1 else line
            )
    return params


def _with_variable(line: str, width: str) -> str:
    """Return the line with the variable set while it runs. It sees the last line's `$?`; its own variables stay."""
    return f"{VARIABLE}={width} eval {shlex.quote(line)}" if line.strip() else line


def parallel(line: str, cores: int) -> str:
    """Return the line with `pytest` and `make` on `cores` cores; the same line if that is impossible or unsafe."""
    commands = _commands(line) if "pytest" in line or "py.test" in line or "make" in line else ()
    insertions = [insertion for command in commands if (insertion := _insertion(command, cores)) is not None]
    for at, word in reversed(insertions):
        line = f"{line[:at]} {word}{line[at:]}"
    return line


def _commands(line: str) -> list[Words]:
    """Return the line's simple commands; empty if it is more than a list of them."""
    commands: list[Words] = [[]]
    before = "end"
    for token in _tokens(line):
        if token is None:
            return []
        if token.lastgroup == "end":
            commands.append([])
        elif token.lastgroup == "redirection" and before == "word" and _is_descriptor(commands[-1], token):
            commands[-1].pop()
        elif token.lastgroup == "word" and before != "redirection":
            if not commands[-1] and _COMPOUND.fullmatch(token[0]):
                return []
            commands[-1].append(token)
        before = token.lastgroup or ""
    return commands


def _is_descriptor(command: Words, redirection: re.Match[str]) -> bool:
    """Return True if the word before a redirection is a descriptor number instead of a word of the command."""
    return bool(command) and command[-1].end() == redirection.start() and command[-1][0].isdecimal()


def _tokens(line: str) -> Iterator[re.Match[str] | None]:
    """Yield its tokens, without blanks and comments; None at the first character that begins no token."""
    at = 0
    while at < len(line):
        token = _TOKEN.match(line, at)
        if token is None or token.lastgroup != "blank":
            yield token
        if token is None:
            return
        at = token.end()


def _insertion(command: Words, cores: int) -> tuple[int, str] | None:
    """Return the position and the word to insert; None for a command that stays unchanged."""
    texts = [word[0] for word in command]
    first = next((place for place, text in enumerate(texts) if not _ASSIGNMENT.match(text)), len(texts))
    assigned, called = texts[:first], texts[first:]
    if not called or any("$" in text for text in called) or any(map(_DECIDES.match, assigned)):
        return None
    name, *rest = called
    if _MAKE.fullmatch(name):
        unchanged = _has_option(_MAKE_OWN, rest) or _goals(rest) > 1
        return None if unchanged else (command[first].end(), _for_make(cores))
    if _PYTHON.fullmatch(name) and rest[:2] == ["-m", "pytest"]:
        place, python, rest = first + 2, name, rest[2:]
    elif _PYTEST.fullmatch(name):
        place, python = first, ""
    else:
        return None
    if _has_option(_PYTEST_OWN, rest):
        return None
    probe = " ".join([*assigned, python or f"${{{_FOUND}#??}}", f"-c '{_probe()}' {cores}", *rest])
    if not python:
        probe = f'read -r {_FOUND} <"$(command -v {name})"; case ${_FOUND} in ("#!"*python*) {probe};; esac'
    return command[place].end(), f"$({{ {probe}; }} 2>/dev/null </dev/null)"


def _goals(words: list[str]) -> int:
    """Return the most goals that these words give `make`: it makes goals in sequence, but all at once with `-j`."""
    goals, is_value, options = 0, False, True
    for text in words:
        word = _plain(text)
        if _SEVERAL.search(_QUOTED.sub("", text).partition("=")[0]):
            goals += 2
        elif is_value:
            is_value = False
        elif options and word.startswith("-") and word != "-":
            is_value = _MAKE_VALUE.fullmatch(word) is not None
            options = word != "--"
        elif "=" not in word:
            goals += 1
    return goals


def _for_make(cores: int) -> str:
    return f'$(case "${{MAKEFLAGS-}} ${{GNUMAKEFLAGS-}}" in (*j*) ;; (*) echo -j{cores};; esac)'


def _has_option(pattern: re.Pattern[str], words: list[str]) -> bool:
    return any(pattern.match(_plain(word)) for word in words)


def _plain(word: str) -> str:
    return re.sub(r"['\"\\]", "", word)


@cache
def _probe() -> str:
    """Return the probe's source as one line without single quotes."""
    return f"exec({json.dumps(inspect.getsource(xdist_probe))});main()"
