"""Score samples with a judge and two reward models that share one GPU. Prints one JSON line for each sample.

    python examples/one-gpu/score.py examples/one-gpu/samples.jsonl

A sample without all three scores is masked, and not scored with a part of them.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from treadle.client.asynchronous import AsyncTreadle

WEIGHTS = {"judge": 0.5, "reward-a": 0.25, "reward-b": 0.25}
SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 10}},
    "required": ["score"],
    "additionalProperties": False,
}
QUESTION = "Question: {question}\nAnswer: {answer}\nMark the answer from 0 to 10, as JSON with `score`."


async def scores(client: AsyncTreadle, sample: dict[str, str]) -> dict[str, float | None]:
    """Return the score of each service; None where there is none. The three calls run at the same time."""
    judged = {
        "service": "judge",
        "template": [{"role": "user", "content": QUESTION}],
        "fields": {"question": sample["question"], "answer": sample["answer"]},
        "score": {"schema": SCHEMA},
        "scale": 0.1,
        "max_tokens": 64,
    }
    pair = {"prompt": sample["question"], "answer": sample["answer"]}
    calls = [client.run("model.judge", judged, timeout_s=900, budget_s=1800)]
    for service in ("reward-a", "reward-b"):
        rated = {"service": service, "inputs": [pair], "truncate": True}
        calls.append(client.run("model.score", rated, timeout_s=900, budget_s=1800))
    answers = await asyncio.gather(*calls)
    return dict(zip(WEIGHTS, [None if answer.mask else answer.score for answer in answers], strict=True))


def combined(found: dict[str, float | None]) -> float | None:
    """Return the weighted sum; None if a score is missing."""
    known = {name: score for name, score in found.items() if score is not None}
    return sum(WEIGHTS[name] * score for name, score in known.items()) if len(known) == len(WEIGHTS) else None


async def main(samples: list[dict[str, str]]) -> None:
    async with AsyncTreadle() as client:  # TREADLE_URL, else http://127.0.0.1:8700
        found = await asyncio.gather(*(scores(client, sample) for sample in samples))
    for sample, one in zip(samples, found, strict=True):
        reward = combined(one)
        line: dict[str, Any] = {"id": sample["id"], "reward": reward, "mask": reward is None, "scores": one}
        print(json.dumps(line))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main([json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]))
