"""Episodes with predictable answers: files, variables, directories, background processes, time limits.

An episode is drawn from a seed and run in an environment of any runtime. A model of the environment's content predicts
each answer, so all of it is checked and not the status alone.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
Act = Callable[[str, Json, float], Awaitable[Json]]
"""(kind, params, timeout_s) -> the answer of one action in one environment."""

LIMIT_S = 30.0
"""Time limit of an action that must end by itself: far more than it takes on a busy machine."""
SHORT_S = 0.2
"""Time limit of an action that must exceed it."""


@dataclass(frozen=True, slots=True)
class EpisodeStep:
    """One action and its expected answer."""

    kind: str
    params: Json
    expected: Json
    """Part of its output; empty if it reaches its time limit."""
    passed: bool = True
    ended: str = "ok"

    def wrong(self, answer: Json) -> str:
        """Return the difference of an answer from the expected one; empty if it is right."""
        output = answer.get("output") or {}
        shown = {name: output.get(name) for name in self.expected}
        wanted = (self.ended, None if self.ended == "timeout" else self.passed, self.expected)
        got = (answer.get("ended"), answer.get("passed"), shown)
        return (
            "" if got == wanted else f"{self.kind} {self.params}: wanted {wanted}, got {got} ({answer.get('reason')})"
        )


@dataclass(slots=True)
class Episode:
    """Random steps, and a model of their effects."""

    rng: random.Random
    files: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    background: bool = False

    def steps(self, count: int) -> Iterator[EpisodeStep]:
        """Yield `count` steps; the first stores the working directory."""
        yield _bash("base=$PWD; echo ready", "ready\n")
        for _ in range(count - 1):
            yield self._draw()

    def _draw(self) -> EpisodeStep:
        draws = [self._write, self._append, self._set, self._enter, self._fail, self._start, self._overrun]
        if self.files:
            draws += [self._read, self._cat, self._list]
        if self.variables:
            draws += [self._echo, self._echo]
        if self.folder:
            draws += [self._where]
        if self.background:
            draws += [self._lives]
        return self.rng.choice(draws)()

    def _word(self) -> str:
        return f"{self.rng.getrandbits(40):x}"

    def _write(self) -> EpisodeStep:
        path, content = f"f{self.rng.randrange(4)}", f"{self._word()} é\n" * self.rng.randrange(1, 4)
        self.files[path] = content
        if self.rng.random() < 0.5:
            return EpisodeStep("env.write", {"path": path, "content": content}, {})
        encoded = base64.b64encode(content.encode()).decode()
        return EpisodeStep("env.write", {"path": path, "content": encoded, "encoding": "base64"}, {})

    def _append(self) -> EpisodeStep:
        path, word = f"f{self.rng.randrange(4)}", self._word()
        self.files[path] = self.files.get(path, "") + f"{word}\n"
        return _bash(f'echo {word} >> "$base/{path}"', "")

    def _read(self) -> EpisodeStep:
        path = self.rng.choice(sorted(self.files))
        return EpisodeStep("env.read", {"path": path}, {"content": self.files[path]})

    def _cat(self) -> EpisodeStep:
        path = self.rng.choice(sorted(self.files))
        return EpisodeStep(
            "env.exec", {"argv": ["cat", path]}, {"stdout": self.files[path], "stderr": "", "exit_code": 0}
        )

    def _list(self) -> EpisodeStep:
        pattern = " ".join(sorted(self.files))
        return EpisodeStep("env.exec", {"argv": ["sh", "-c", "echo f*"]}, {"stdout": f"{pattern}\n", "exit_code": 0})

    def _set(self) -> EpisodeStep:
        name, word = f"v{self.rng.randrange(4)}", self._word()
        self.variables[name] = word
        return _bash(f"{name}={word}", "")

    def _echo(self) -> EpisodeStep:
        name = self.rng.choice(sorted(self.variables))
        return _bash(f'echo "${name}"', f"{self.variables[name]}\n")

    def _enter(self) -> EpisodeStep:
        self.folder = f"d{self.rng.randrange(4)}"
        return _bash(f'mkdir -p "$base/{self.folder}" && cd "$base/{self.folder}"', "")

    def _where(self) -> EpisodeStep:
        return _bash('echo "${PWD##*/}"', f"{self.folder}\n")

    def _fail(self) -> EpisodeStep:
        code = self.rng.randrange(1, 100)
        return EpisodeStep("env.bash", {"line": f"(exit {code})"}, {"exit_code": code}, passed=False)

    def _start(self) -> EpisodeStep:
        if self.background:
            return self._lives()
        self.background = True
        return _bash("sleep 1000 & child=$!", "")

    def _lives(self) -> EpisodeStep:
        return _bash("kill -0 $child && echo alive", "alive\n")

    def _overrun(self) -> EpisodeStep:
        if self.rng.random() < 0.5:
            return EpisodeStep("env.exec", {"argv": ["sleep", "60"]}, {}, ended="timeout")
        return EpisodeStep("env.bash", {"line": "sleep 60", "session": "slow"}, {}, ended="timeout")


def _bash(line: str, output: str) -> EpisodeStep:
    return EpisodeStep("env.bash", {"line": line}, {"exit_code": 0, "output": output})


async def play_episode(act: Act, seed: int, count: int) -> tuple[list[Json], list[str]]:
    """Play one episode. Returns its answers, and what was wrong with them."""
    answers: list[Json] = []
    wrong: list[str] = []
    for number, step in enumerate(Episode(random.Random(seed)).steps(count)):
        answer = await act(step.kind, step.params, SHORT_S if step.ended == "timeout" else LIMIT_S)
        answers.append(answer)
        if said := step.wrong(answer):
            wrong.append(f"step {number}: {said}")
    return answers, wrong
