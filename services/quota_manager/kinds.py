"""Action kinds that the quota manager executes, with their parameters. Declarations only.

Every process may import this module (`shared.kinds.registry`), so it imports nothing of its service.

A call takes what its action names in `quotas`, and each of its attempts takes it again. Secrets and private addresses
are settings of the operator: a parameter only names a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from shared.kinds.formulation import MOST_QUOTAS, Name
from shared.kinds.places import places_of
from shared.kinds.provider_rules import ProviderRules, Statuses, check_rules, compiled
from shared.kinds.spec import KindSpec, Params
from shared.messages.environments import Variable
from shared.policy.resources.resource import ResourceSpec, Specs
from shared.runtime.patterns import CONTENT_TYPE, HEADER, POINTER, whole

MOST_FIELDS: Final = 64
"""Most entries of `values`, `query` and `headers`, each."""
MOST_VALUE: Final = 1 << 20
"""Characters of one of `values`."""
MOST_PATTERN: Final = 4096
"""Characters of a regular expression, or of a JSON pointer."""
MOST_BYTES: Final = 16 << 20
"""Most bytes of an answer that a call may ask for, decompressed."""
MOST_QUERIES: Final = 4096
"""Most queries of one call."""

Pointer = Annotated[str, msgspec.Meta(pattern=whole(POINTER), max_length=MOST_PATTERN)]
"""JSON pointer (RFC 6901): `/choices/0/message/content`; empty: the whole body."""
Header = Annotated[str, msgspec.Meta(pattern=whole(HEADER))]
"""Name of an HTTP header."""
Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class SecretReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A secret of the operator, by its name. Its value is never in an action, an answer or a log."""

    secret: Name


class Extraction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Score in an accepted answer. An answer without a score is no verdict: the call is repeated, or has failed."""

    pointer: Pointer | None = None
    """Place of the score, or of the text in which `pattern` finds it. Null: the whole body."""
    pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_PATTERN)] | None = None
    """Regular expression with one group, in RE2's syntax, searched in the last 16,384 characters; the last match
    counts. Null: the place holds a number, a text that is a number, or true or false."""
    scale: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)] = 1.0
    """Factor of the score: 0.1 for marks from 0 to 10."""
    pass_at: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)] | None = None
    """Least score, after `scale`, that passes. Null: no statement whether the sample passes."""


class UsedAmount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Amount that a call has really used, in its answer."""

    pointer: Pointer
    """Place of the number."""


class OutgoingParams(Params, frozen=True, kw_only=True):
    """Parameters of every call."""

    url: Annotated[str, msgspec.Meta(min_length=8, max_length=8192)]
    """Address: http or https. `{name}` in its path or query is replaced by that entry of `values`, percent-encoded, so
    that no value changes the host or the path's structure."""
    values: Annotated[dict[Variable, Annotated[str, msgspec.Meta(max_length=MOST_VALUE)]],
                      msgspec.Meta(max_length=MOST_FIELDS)] = {}  # fmt: skip
    """Texts for places `{name}` in `url`, in values of `query`, and in texts inside `json`. Each place of a task's
    stage needs one. Of an action outside a task, each text needs a place."""
    query: Annotated[dict[str, str], msgspec.Meta(max_length=MOST_FIELDS)] = {}
    """Parameters that are appended to the URL's query."""
    headers: Annotated[dict[Header, str | SecretReference], msgspec.Meta(max_length=MOST_FIELDS)] = {}
    """Header -> its text, or the name of a secret: {"Authorization": {"secret": "judge_key"}}."""
    timeout_s: Seconds | None = None
    """Limit of one attempt. Null: the action's `timeout_s`, which limits it anyway."""
    accept_status: Statuses | None = None
    """Statuses of accepted answers, and ranges: [200, "300-399"]. Null: 200-299."""
    rules: ProviderRules = ()
    """What answers mean that the status does not show: {"when": {"body": "captcha"}, "then": "pushed-back"}. The first
    rule that matches counts, before what is common among providers."""
    most_bytes: Annotated[int, msgspec.Meta(ge=1, le=MOST_BYTES)] = 2 << 20
    """Most bytes of the answer's body, decompressed. A longer answer is a failure of the upstream."""
    attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    """Most attempts of a call that fails. An upstream that pushes back or is out of credit is asked again until
    `budget_s` is over."""
    repeatable: bool | None = None
    """Whether a call that has reached the upstream may be repeated. Null: by the method (GET, HEAD, PUT, DELETE and
    OPTIONS: yes), and once if the upstream has answered nothing. False: also not after its node was lost."""
    upstream: Name | None = None
    """Quota to which the upstream's pushback applies. Null: the first that the action takes."""

    def __post_init__(self) -> None:
        check_rules(self.rules)


class HttpCall(OutgoingParams, frozen=True, kw_only=True):
    """Call an HTTP service. Its score is formed only of an accepted answer."""

    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] = "GET"
    json: Any = None
    """Body as JSON. Its texts may have places `{name}` that `values` fills; what fills a place is sent as it is, so the
    entry {"x": "{x}"} keeps the text `{x}`. Null: no such body."""
    text: Annotated[str, msgspec.Meta(max_length=MOST_VALUE)] | None = None
    """Body as text, sent as it is."""
    content_type: Annotated[str, msgspec.Meta(pattern=whole(CONTENT_TYPE))] | None = None
    """Content-Type of the body. Null: application/json, or text/plain."""
    extract: Extraction | None = None
    """Where the score is. Null: none is formed."""
    used: Annotated[dict[Name, UsedAmount], msgspec.Meta(max_length=MOST_QUOTAS)] = {}
    """Quota of the action -> place of the amount that was really used: {"judge-tokens": {"pointer":
    "/usage/total_tokens"}}. The quota is settled by it. An answer without the amount leaves what was reserved; the
    output then names the quota in `unsettled`."""


class SearchRetrieve(OutgoingParams, frozen=True, kw_only=True):
    """Ask a retrieval server for documents: the `/retrieve` of Search-R1, verl, SkyRL and slime."""

    queries: Annotated[list[Annotated[str, msgspec.Meta(max_length=1 << 16)]],
                       msgspec.Meta(min_length=1, max_length=MOST_QUERIES)]  # fmt: skip
    topk: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    """Most documents of each query. Null: the upstream's own number."""
    return_scores: bool = False
    """Documents with their scores: {"document": ..., "score": ...}."""
    form: Literal["queries", "query"] = "queries"
    """Body for the upstream: {"queries": [...]}, or {"query": "..."} for servers that take one."""
    queries_a_call: Annotated[int, msgspec.Meta(ge=1, le=MOST_QUERIES)] = 64
    """Most queries in one call. `POST /retrieve` makes several actions of more; each takes the stage's quotas."""

    @property
    def most_queries(self) -> int:
        """Most queries of one call in this form."""
        return 1 if self.form == "query" else self.queries_a_call


EXECUTOR: Final = "quota_manager"
CALLS: Final = "calls"
"""Calls that one node makes at the same time. They take no core."""
RESOURCES: Final[Specs] = {CALLS: ResourceSpec(answers=True)}
RETRIEVE: Final = "search.retrieve"


def check_template(params: Mapping[str, Any]) -> None:
    """Check what a task's stage says of its calls.

    Raises:
        ValueError: no call can be made of it. The message says what to write.
    """
    if "url" in params and not params["url"].lower().startswith(("http://", "https://")):
        raise ValueError("params.url: it does not begin with http:// or https://")
    try:
        check_rules(msgspec.convert(params.get("rules", ()), ProviderRules))
    except ValueError as error:
        raise ValueError(f"params.rules: {error}") from error
    pattern = (params.get("extract") or {}).get("pattern")
    if pattern is not None:
        try:
            groups = compiled(pattern).groups
        except ValueError as error:
            raise ValueError(f"params.extract.pattern: {error}") from error
        if groups != 1:
            raise ValueError(f"params.extract.pattern: it has {groups} groups; write one group, around the score")
    if params.get("json") is not None and params.get("text") is not None:
        raise ValueError("params: `json` and `text` are both bodies: give one of them")


def _calling(name: str, params: type[Params], free_form: tuple[str, ...] = ()) -> KindSpec:
    return KindSpec(
        name,
        params,
        EXECUTOR,
        {CALLS: 1},
        (CALLS,),
        free_form=free_form,
        repeatable_by="repeatable",
        places=places_of,
        check=check_template,
    )


KINDS: Final = (_calling("http", HttpCall, ("json",)), _calling(RETRIEVE, SearchRetrieve))
"""Kinds that this service executes."""
