"""Requests of the demo: each as an action for the mesh, and as a plain call of the model, whose answers must agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from treadle.client.answers import Answer
from treadle.model_demo.samples import Solution

Service = Literal["judge", "similarity", "reward"]
SERVICES: Final[tuple[Service, ...]] = ("judge", "similarity", "reward")
TOLERANCE: Final = 1e-4
"""Of numbers. PyTorch computes a text in batches of different sizes, which differ in their last bits."""
APART: Final = 10 * TOLERANCE
"""Least difference between the reference answers of two cases, so that a swapped answer is a wrong one."""
MODEL: Final = "gemma"
MOST_TOKENS: Final = 64
TEMPLATE: Final = """Marks from 0 to 10 for answers, and the number that each answer ends with.

Question: A box has 3 red and 4 blue balls. How many balls has it?
Answer: 3 + 4 = 7. A: 7
Marks: {"result": "7", "score": 10}

Question: Tom has 20 coins and loses 5. How many has he?
Answer: 20 + 5 = 25. A: 25
Marks: {"result": "25", "score": 1}

Question: {question}
Answer: {answer}
Marks:"""
"""The model is a base model, so it continues a text. Its marks mean little; `result` differs from answer to answer."""
SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "result": {"type": "string", "pattern": "^[0-9]{1,8}$"},
        "score": {"type": "integer", "minimum": 0, "maximum": 10},
    },
    "required": ["result", "score"],
    "additionalProperties": False,
}


class DemoCase(msgspec.Struct, frozen=True):
    """One request, in both forms."""

    service: Service
    solution: Solution
    kind: Literal["model.judge", "model.embed", "model.score"]
    params: dict[str, Any]
    """Of the action."""
    path: str
    body: dict[str, Any]
    """Of the plain call."""


Value = str | list[float]
"""Answer of a case: the text of a judgement, or numbers."""


def case_of(service: Service, solution: Solution) -> DemoCase:
    """Return the request to a service about a solution."""
    return _MAKERS[service](solution)


def _judge(solution: Solution) -> DemoCase:
    fields = {"question": solution.question, "answer": solution.text}
    params = {
        "service": "judge",
        "template": [{"role": "user", "content": TEMPLATE}],
        "fields": fields,
        "score": {"schema": SCHEMA},
        "scale": 0.1,
        "pass_at": 0.6,
        "max_tokens": MOST_TOKENS,
        "attempts": 1,
    }
    body = {
        "model": MODEL,
        "messages": [
            {
                "role": "user",
                "content": TEMPLATE.replace("{question}", solution.question).replace("{answer}", solution.text),
            }
        ],
        "max_tokens": MOST_TOKENS,
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "marks", "schema": SCHEMA, "strict": True}},
    }
    return DemoCase("judge", solution, "model.judge", params, "/v1/chat/completions", body)


def _similarity(solution: Solution) -> DemoCase:
    pairs = [[solution.text, solution.reference], [solution.text, solution.question]]
    params = {"service": "similarity", "pairs": pairs, "truncate": True}
    return DemoCase("similarity", solution, "model.embed", params, "/v1/embed", {"pairs": pairs, "truncate": True})


def _reward(solution: Solution) -> DemoCase:
    params = {
        "service": "reward",
        "inputs": [{"prompt": solution.question, "answer": solution.text}, solution.text],
        "truncate": True,
    }
    body = {"inputs": [[solution.question, solution.text], solution.text], "truncate": True}
    return DemoCase("reward", solution, "model.score", params, "/v1/score", body)


_MAKERS: Final[Mapping[Service, Callable[[Solution], DemoCase]]] = {
    "judge": _judge,
    "similarity": _similarity,
    "reward": _reward,
}
_NUMBERS: Final[Mapping[Service, str]] = {"similarity": "similarities", "reward": "scores"}


def plain_value(case: DemoCase, answer: Mapping[str, Any]) -> Value | None:
    """Return the value in the answer of a plain call; None if there is no whole one."""
    if case.service != "judge":
        return [float(number) for number in answer[_NUMBERS[case.service]]]
    choice = answer["choices"][0]
    return str(choice["message"]["content"]) if choice["finish_reason"] == "stop" else None


def answered_value(case: DemoCase, answer: Answer) -> Value | None:
    """Return the value in an answer of the mesh; None if it is not of this form, which is wrong."""
    output = answer.output if isinstance(answer.output, dict) else {}
    found = output.get("text") if case.service == "judge" else output.get(_NUMBERS[case.service])
    if case.service != "judge":
        numbers = isinstance(found, list) and all(isinstance(one, int | float) for one in found)
        return [float(one) for one in found] if numbers and found else None
    return found if isinstance(found, str) and answer.score == marks_in(found) else None


def marks_in(text: str) -> float | None:
    """Return the score that a judgement's text means, read here anew."""
    try:
        return float(msgspec.json.decode(text)["score"]) * 0.1
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None


def agree(one: Value, other: Value, within: float = TOLERANCE) -> bool:
    """Return whether two values are the same: texts exactly, numbers within a tolerance."""
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return len(one) == len(other) and all(abs(a - b) <= within for a, b in zip(one, other, strict=True))


def is_new(value: Value, others: Sequence[Value]) -> bool:
    """Return whether a reference answer differs from all others, so that one cannot pass for the other."""
    return not any(agree(value, other, APART) for other in others)
