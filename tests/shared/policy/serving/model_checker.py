"""Model checker of `NodeServing`: all interleavings of a small case, breadth first.

A state is the machine with the node that executes its commands and what may still happen (`Budget`). Moves of the
environment: a holder arrives, ends or gives up; a step succeeds, fails or runs out of memory; an engine dies; a service
is removed or changed; a GPU is bad and good again; the process restarts, with each step under way done or not; an
engine's residency is found; time passes to the next wake. `FakeNode` asserts the laws at each command. Afterwards each
state from which no sequence of moves ends all holders is a dead end.

States are equal if their keys are (`state_keys`).
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from shared.policy.serving.model import Command
from tests.shared.policy.serving.environment_moves import Case, CheckedState, first_state, moves_of


@dataclass(slots=True)
class Exploration:
    """Result of the exploration of a case."""

    states: int = 0
    moves: int = 0
    dead_ends: list[list[str]] = field(default_factory=list)
    """Moves that lead to each dead end."""
    seen: set[type[Command]] = field(default_factory=set)
    """Kinds of commands."""


def explore(case: Case, most_states: int) -> Exploration:
    """Explore all reachable states of a case.

    Raises:
        AssertionError: a law is broken, with the moves that lead there, or there are more states than `most_states`.
    """
    first = first_state(case)
    numbers: dict[Hashable, int] = {first.key(): 0}
    come_from: list[tuple[int, str]] = [(-1, "start")]
    before: list[list[int]] = [[]]
    finished = [first.done()]
    queue = deque([(0, pickle.dumps(first))])
    result = Exploration()
    while queue:
        number, dumped = queue.popleft()
        for name, move in moves_of(pickle.loads(dumped), case):
            world: CheckedState = pickle.loads(dumped)
            try:
                move(world)
            except Exception as error:
                path = [*_path(come_from, number), name]
                raise AssertionError(f"{type(error).__name__}: {error}\nafter:\n  " + "\n  ".join(path)) from error
            result.moves += 1
            result.seen |= world.node.seen
            world.node.seen = set()
            key = world.key()
            known = numbers.get(key)
            if known is None:
                known = numbers[key] = len(before)
                assert known < most_states, f"more than {most_states} states"
                before.append([])
                come_from.append((number, name))
                finished.append(world.done())
                queue.append((known, pickle.dumps(world)))
            before[known].append(number)
    result.states = len(before)
    result.dead_ends = [_path(come_from, number) for number in _unfinished(before, finished)]
    return result


def _unfinished(before: list[list[int]], finished: list[bool]) -> Iterator[int]:
    """States from which none leads to a finished one."""
    alive = {number for number, done in enumerate(finished) if done}
    pending = list(alive)
    while pending:
        for earlier in before[pending.pop()]:
            if earlier not in alive:
                alive.add(earlier)
                pending.append(earlier)
    return (number for number in range(len(before)) if number not in alive)


def _path(come_from: list[tuple[int, str]], number: int) -> list[str]:
    path = []
    while number >= 0:
        number, name = come_from[number]
        path.append(name)
    return path[::-1]
