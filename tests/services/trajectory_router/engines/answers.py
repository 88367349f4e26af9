"""vLLM's answers: chat and completions, whole and in events. Fields that were not requested are absent."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import msgspec

from tests.services.trajectory_router.engines.call_log import LoggedCall
from tests.services.trajectory_router.engines.generation import Entry

Fields = dict[str, Any]


class Wanted(NamedTuple):
    """Optional fields of an answer."""

    token_ids: bool
    logprobs: int | None
    """Most likely tokens of each position; None: no log-probabilities."""
    weight_versions: bool
    usage: bool
    """In a stream."""
    tokens_as_ids: bool
    """Tokens in log-probabilities are `token_id:7`."""

    @classmethod
    def by(cls, body: Fields, *, chat: bool) -> Wanted:
        """Return what a request asks for."""
        logprobs = body.get("logprobs")
        if chat:
            logprobs = (body.get("top_logprobs") or 0) if logprobs else None
        return cls(
            bool(body.get("return_token_ids")),
            logprobs,
            bool(body.get("return_weight_versions")),
            bool((body.get("stream_options") or {}).get("include_usage")),
            bool(body.get("return_tokens_as_token_ids")),
        )


class Answer:
    """One call's answer.

    `texts`: text of each token id in it. `nulls`: fields of token ids that were not requested are null, not absent.
    """

    def __init__(self, call: LoggedCall, model: str, wanted: Wanted, texts: dict[int, str], *, nulls: bool) -> None:
        self._call = call
        self._model = model
        self._wanted = wanted
        self._texts = texts
        self._nulls = nulls
        self._chat = call.route == "/v1/chat/completions"
        self._created = int(time.time())
        self._begun = False

    def first(self) -> Fields | None:
        """Return the event before the first delta. Completions have none."""
        if not self._chat:
            return None
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return {**self._event([choice]), **self._ids("prompt_token_ids", self._call.prompt_ids)}

    def delta(self, text: str, entries: list[Entry]) -> Fields:
        """Return the event of further output tokens."""
        choice: Fields = {"index": 0, **({"delta": {"content": text}} if self._chat else {"text": text})}
        choice |= {"logprobs": self._logprobs(entries), "finish_reason": None}
        if not self._chat and not self._begun:
            choice |= self._ids("prompt_token_ids", self._call.prompt_ids)
        choice |= self._ids("token_ids", [entry.id for entry in entries])
        self._begun = True
        return self._event([choice])

    def last(self, stop_string: str | None, tool_calls: list[Fields] | None) -> Fields:
        """Return the last event with a choice."""
        calls = [{"index": number, **call} for number, call in enumerate(tool_calls or ())]
        event = self.delta("", [])
        (choice,) = event["choices"]
        if calls:
            choice["delta"] = {"tool_calls": calls}
        choice |= {"finish_reason": self._call.finish_reason, "stop_reason": stop_string, **self._versions()}
        return event

    def usage_event(self) -> Fields | None:
        """Return the event of the usage, if it was requested."""
        return {**self._event([]), "usage": self._usage()} if self._wanted.usage else None

    def whole(self, entries: list[Entry], stop_string: str | None, tool_calls: list[Fields] | None) -> Fields:
        """Return an answer that is not streamed."""
        call = self._call
        if self._chat:
            content = None if tool_calls else call.text
            message: Fields = {"role": "assistant", "content": content}
            choice: Fields = {"index": 0, "message": message | ({"tool_calls": tool_calls} if tool_calls else {})}
        else:
            choice = {"index": 0, "text": call.text}
        choice |= {"logprobs": self._logprobs(entries), "finish_reason": call.finish_reason, "stop_reason": stop_string}
        choice |= {**self._ids("token_ids", call.output_ids), **self._versions()}
        ids = self._ids("prompt_token_ids", call.prompt_ids)
        if not self._chat:
            choice |= ids
        kind = "chat.completion" if self._chat else "text_completion"
        return {**self._head(kind), "choices": [choice], "usage": self._usage(), **(ids if self._chat else {})}

    def _event(self, choices: list[Fields]) -> Fields:
        return {**self._head("chat.completion.chunk" if self._chat else "text_completion"), "choices": choices}

    def _head(self, kind: str) -> Fields:
        return {"id": self._call.id, "object": kind, "created": self._created, "model": self._model}

    def _ids(self, name: str, ids: list[int]) -> Fields:
        if not self._wanted.token_ids:
            return {name: None} if self._nulls else {}
        return {name: ids}

    def _versions(self) -> Fields:
        return {"weight_versions": msgspec.to_builtins(self._call.versions)} if self._wanted.weight_versions else {}

    def _usage(self) -> Fields:
        prompt, output = len(self._call.prompt_ids), len(self._call.output_ids)
        cached = {"cached_tokens": self._call.cached_tokens}
        counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        return {**counts, "prompt_tokens_details": cached}

    def _logprobs(self, entries: list[Entry]) -> Fields | None:
        top = self._wanted.logprobs
        if top is None or not entries:
            return None
        if not self._chat:
            return {
                "text_offset": [0] * len(entries),
                "token_logprobs": [entry.logprob for entry in entries],
                "tokens": [self._token(entry.id, self._texts[entry.id]) for entry in entries],
                "top_logprobs": [
                    {self._token(id_, text): logprob for id_, text, logprob in entry.top[:top]} for entry in entries
                ],
            }
        return {
            "content": [
                {
                    **self._logprob(entry.id, self._texts[entry.id], entry.logprob),
                    "top_logprobs": [self._logprob(*one) for one in entry.top[:top]],
                }
                for entry in entries
            ]
        }

    def _logprob(self, id_: int, text: str, logprob: float) -> Fields:
        return {"token": self._token(id_, text), "logprob": logprob, "bytes": list(text.encode())}

    def _token(self, id_: int, text: str) -> str:
        return f"token_id:{id_}" if self._wanted.tokens_as_ids else text
