"""One attempt of a call: prepare it, send it, read the answer, form the result.

`outgoing` sends; `provider` reads what the upstream reports; `outcomes` decides on repeats; `scoring` forms scores.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

import msgspec

from services.quota_manager.kinds import RETRIEVE, HttpCall, OutgoingParams, SearchRetrieve
from services.quota_manager.metrics import CallMetrics
from services.quota_manager.outcomes import CallEnd, Safety, feedback_of, unaccepted
from services.quota_manager.outgoing.calls import OutgoingAnswer, OutgoingCall
from services.quota_manager.outgoing.errors import (
    BrokenAnswer,
    ForbiddenAddress,
    InvalidCall,
    NoFirstByte,
    NoMemory,
    NotConnected,
)
from services.quota_manager.outputs import InvalidDocuments, documents_output, http_output
from services.quota_manager.provider import Reading, read_answer
from services.quota_manager.requests import http_call, is_repeatable, retrieve_call
from services.quota_manager.scoring import amount_of, score_of
from services.quota_manager.templates import InvalidTemplate
from shared.kinds.provider_rules import Statuses, includes
from shared.kinds.scoring import InvalidPattern, NoScore, compiled, decoded_json
from shared.messages.grants import Granted
from shared.policy.model.results import AttemptResult, refused
from shared.runtime.byte_budget import ByteBudget, ByteShare
from shared.runtime.clock import Clock
from shared.runtime.errors import BadRequest
from shared.runtime.validation import decoded

SHOWN_BODY: Final = 200
"""Characters of an answer's body in a reason."""
ACCEPTED: Final[Statuses] = ["200-299"]
MOST_SEARCH_S: Final = 1.0
"""Seconds of one search for a score. What RE2 does between two matches is not interrupted."""
_http: Final = msgspec.json.Decoder(HttpCall)
_retrieve: Final = msgspec.json.Decoder(SearchRetrieve)


class Sends(Protocol):
    """Client that sends calls: `services.quota_manager.outgoing.client.Outgoing`."""

    async def call(self, call: OutgoingCall, memory: ByteShare | None = None) -> OutgoingAnswer:
        """Return the answer, of any status; raises an `OutgoingError`."""


@dataclass(slots=True)
class Calling:
    """Attempts of both kinds."""

    outgoing: Sends
    clock: Clock
    random: Random
    output_bytes: int
    metrics: CallMetrics
    bodies: ByteBudget
    """Memory of answers. A tenant has at most a part of it."""

    async def attempt(self, grant: Granted) -> AttemptResult:
        """Execute a grant, within `grant.timeout_s` seconds."""
        began = self.clock.monotonic()
        try:
            params, call = _prepared(grant)
        except (BadRequest, InvalidTemplate, InvalidPattern) as error:
            return refused(str(error) if isinstance(error, BadRequest) else f"params of {grant.work}: {error}")
        if params.upstream is not None and params.upstream not in grant.quotas:
            return refused(f"upstream: the action takes nothing of the quota {params.upstream!r}; name it in `quotas`")
        if isinstance(params, HttpCall) and (others := params.used.keys() - grant.quotas.keys()):
            return refused(f"used: the action takes nothing of the quota {min(others)!r}; name it in `quotas`")
        with self.bodies.share(grant.tenant) as memory:
            return await self._attempted(call, grant, params, began, memory)

    async def _attempted(
        self, call: OutgoingCall, grant: Granted, params: OutgoingParams, began: float, memory: ByteShare
    ) -> AttemptResult:
        end = await self._called(call, memory)
        if isinstance(end, OutgoingAnswer):
            self.metrics.seconds.observe(end.elapsed_s)
            if not has_patterns(params):
                return self._judged(end, grant, params, began)
            # A search may take seconds; RE2 releases the interpreter's lock meanwhile.
            return await asyncio.to_thread(self._judged, end, grant, params, began)
        return refused(end) if isinstance(end, str) else self._ended(end, grant, params, began)

    async def _called(self, call: OutgoingCall, memory: ByteShare) -> OutgoingAnswer | CallEnd | str:
        """Return the answer, the end of a call without one, or why it can never be made."""
        try:
            return await self.outgoing.call(call, memory)
        except (InvalidCall, ForbiddenAddress) as error:
            return error.reason
        except NotConnected as error:
            return CallEnd("failed", "no connection", "unsent", error.reason)
        except NoFirstByte as error:
            return CallEnd("failed", "no answer in time", "silent", error.reason)
        except BrokenAnswer as error:
            return CallEnd("failed", "a broken answer", "sent", error.reason)
        except NoMemory as error:
            return CallEnd("ok", "", "sent", error.reason)

    def _judged(self, answer: OutgoingAnswer, grant: Granted, params: OutgoingParams, began: float) -> AttemptResult:
        """Return the result of an answer of any status."""
        reading = read_answer(answer.status, answer.headers, answer.body, params.rules, self.clock.unix())
        failure = self._unaccepted(answer, params, reading)
        if failure is None:
            return self._accepted(answer, grant, params, reading, began)
        return self._ended(failure, grant, params, began)

    def _unaccepted(self, answer: OutgoingAnswer, params: OutgoingParams, reading: Reading) -> CallEnd | None:
        """Return how the call ended; None if its answer is accepted."""
        said = f"the upstream answered {answer.status}: {beginning(answer.body)}".removesuffix(": ")
        if reading.answer in ("pushed-back", "exhausted"):
            return CallEnd(reading.answer, reading.reason, "declined", said, reading.not_before_s)
        accepted = includes(params.accept_status or ACCEPTED, answer.status)
        if accepted and (reading.answer == "ok" or not params.rules):
            return None
        if reading.answer == "failed":
            declined = answer.status == 503 and any(name == "retry-after" for name, _ in answer.headers)
            safety: Safety = "declined" if declined else "sent"
            return CallEnd("failed", reading.reason, safety, said, reading.not_before_s, not reading.retryable)
        return CallEnd("ok", "", "sent", said, reading.not_before_s, final=True)

    def _accepted(
        self, answer: OutgoingAnswer, grant: Granted, params: OutgoingParams, reading: Reading, began: float
    ) -> AttemptResult:
        """Return the verdict of an accepted answer. Without its score, or its documents, the call has failed."""
        used: dict[str, float] = {}
        score, passed = None, None
        try:
            if isinstance(params, SearchRetrieve):
                output = documents_output(
                    answer.body, queries=len(params.queries), scores=params.return_scores, limit=self.output_bytes
                )
            else:
                assert isinstance(params, HttpCall)
                used = _used(params, answer.body)
                output = http_output(answer, self.output_bytes, sorted(params.used.keys() - used.keys()))
                if params.extract is not None:
                    ends = self.clock.monotonic() + MOST_SEARCH_S
                    score = score_of(params.extract, answer.body, lambda: self.clock.monotonic() < ends)
                    passed = None if params.extract.pass_at is None else score >= params.extract.pass_at
        except NoScore as error:
            result = self._ended(CallEnd("ok", "", "sent", str(error)), grant, params, began)
            return msgspec.structs.replace(result, quotas_used=used)
        except InvalidDocuments as error:
            return self._ended(
                CallEnd("failed", "an answer without documents", "sent", str(error)), grant, params, began
            )
        self.metrics.answers["ok"].inc()
        return AttemptResult(
            "ok",
            passed,
            score,
            output,
            quotas_used=used,
            evidence="" if score is None else "separate",
            feedback=feedback_of(grant, params, "ok", reading.not_before_s, ""),
        )

    def _ended(self, end: CallEnd, grant: Granted, params: OutgoingParams, began: float) -> AttemptResult:
        self.metrics.answers[end.answer].inc()
        elapsed_s = self.clock.monotonic() - began
        return unaccepted(end, grant, params, is_repeatable(params), elapsed_s, self.random)


def _prepared(grant: Granted) -> tuple[OutgoingParams, OutgoingCall]:
    """Return a grant's parameters and its call.

    Raises:
        BadRequest: the parameters are malformed.
        InvalidTemplate: they do not form a call.
        InvalidPattern: the pattern of the score is invalid.
    """
    if grant.work == RETRIEVE:
        retrieve = decoded(_retrieve, grant.params, f"params of {grant.work}")
        return retrieve, retrieve_call(retrieve, grant)
    params = decoded(_http, grant.params, f"params of {grant.work}")
    if params.extract is not None and params.extract.pattern is not None:
        compiled(params.extract.pattern)
    return params, http_call(params, grant)


def _used(params: HttpCall, body: bytes) -> dict[str, float]:
    """Return the amounts that the answer reports."""
    if not params.used:
        return {}
    try:
        document = decoded_json(body)
    except NoScore:
        return {}
    found = {quota: amount_of(place.pointer, document) for quota, place in params.used.items()}
    return {quota: amount for quota, amount in found.items() if amount is not None}


def has_patterns(params: OutgoingParams) -> bool:
    """Return whether a caller's pattern is searched in the answer."""
    extract = params.extract if isinstance(params, HttpCall) else None
    return (extract is not None and extract.pattern is not None) or any(rule.when.patterns for rule in params.rules)


def beginning(body: bytes) -> str:
    """Return the beginning of a body as one line of text."""
    text = body[: 4 * SHOWN_BODY].decode("utf-8", "replace")
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:SHOWN_BODY]
