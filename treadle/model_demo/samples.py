"""Solutions of word problems to judge: GSM8K's where the data folder has them, else a small set of our own."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Final

import msgspec

FILE: Final = Path("math", "gsm8k_model_solutions.jsonl.gz")
"""In the data folder (TREADLE_DATA)."""
MOST_CHARS: Final = 800
"""Of a question and a solution together: some 250 tokens, which every model reads whole."""


class Solution(msgspec.Struct, frozen=True):
    """One solution of a question."""

    id: str
    question: str
    reference: str
    """A right solution."""
    text: str
    """The solution that is judged."""
    is_correct: bool


class _Sample(msgspec.Struct):
    solution: str
    is_correct: bool
    model: str


class _Question(msgspec.Struct):
    id: str
    question: str
    answer: str
    samples: list[_Sample]


def read_solutions(data: Path, seed: int) -> tuple[list[Solution], str]:
    """Return solutions in random order, and their source for people.

    Args:
        data: the data folder. If it has none, the built-in set is used.
    """
    path = data / FILE
    if path.is_file():
        with gzip.open(path, "rb") as lines:
            found = [one for line in lines for one in _of(msgspec.json.decode(line, type=_Question))]
        source = f"GSM8K, {path}"
    else:
        found, source = built_in(), f"a built-in set ({path} does not exist; TREADLE_DATA names its folder)"
    found = [one for one in found if len(one.question) + len(one.text) <= MOST_CHARS]
    random.Random(seed).shuffle(found)
    return found, source


def _of(one: _Question) -> list[Solution]:
    return [
        Solution(f"{one.id}/{sample.model}", one.question, one.answer, sample.solution, sample.is_correct)
        for sample in one.samples
    ]


def built_in() -> list[Solution]:
    """Return 48 solutions of 12 questions of our own; half of them are right."""
    found = []
    for number, (question, steps, result) in enumerate(_QUESTIONS):
        right, short = f"{steps} A: {result}", f"A: {result}"
        wrong, guessed = f"{steps} A: {result + number + 1}", f"A: {result * 2 + 1}"
        for name, text, is_correct in (
            ("steps", right, True), ("short", short, True), ("slip", wrong, False), ("guess", guessed, False),
        ):  # fmt: skip
            found.append(Solution(f"own-{number}/{name}", question, right, text, is_correct))
    return found


_QUESTIONS: Final = (
    ("A weaver has 7 looms with 40 threads each and cuts 12. How many are left?", "7 * 40 = 280, less 12.", 268),
    ("Nine boats carry 14 crates each. Fifty crates fall overboard. How many arrive?", "9 * 14 = 126, less 50.", 76),
    ("A library lends 35 books on each of 6 days; 48 come back. How many are out?", "35 * 6 = 210, less 48.", 162),
    ("Ola runs 4 km on weekdays and 11 km on Saturday. How far in such a week?", "5 * 4 = 20, and 11 more.", 31),
    ("A tank of 500 litres loses 18 litres an hour. What is left after 15?", "15 * 18 = 270 are lost.", 230),
    ("Three ovens bake 24 rolls each, twice a day. How many rolls in 5 days?", "3 * 24 = 72, twice 144, 5 days.", 720),
    ("Mira saves 13 coins a week for 9 weeks and spends 45. How many has she?", "13 * 9 = 117, less 45.", 72),
    ("A train has 8 coaches of 66 seats; 129 seats are free. How many are taken?", "8 * 66 = 528, less 129.", 399),
    ("Two fields give 310 and 265 sacks. Each cart holds 25 sacks. How many carts?", "575 sacks by 25.", 23),
    ("A roll of 90 m is cut into pieces of 6 m; 4 are sold. How many are left?", "90 by 6 is 15, less 4.", 11),
    ("A class of 28 shares 196 cards evenly. How many cards have 3 pupils together?", "196 by 28 is 7, times 3.", 21),
    ("A lamp burns 3 candles a night. Sixty candles are there. How many nights?", "60 by 3.", 20),
)  # fmt: skip
"""Question, steps, result."""
