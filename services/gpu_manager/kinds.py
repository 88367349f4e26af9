"""Action kinds that the GPU manager executes, with their parameters. Declarations only.

Every process may import this module (`shared.kinds.registry`), so it imports nothing of its service.

An action of a model names a model service of the operator. Where its engine is, and how it is started, is no parameter.
A CUDA kernel uses a chunk of one GPU alone, as if it were a model service that needs all memory of the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from shared.kinds.cuda import CudaKernel, CudaProgram
from shared.kinds.formulation import Name
from shared.kinds.judgement_schemas import compiled as compiled_schema
from shared.kinds.places import PLACE, filled_size
from shared.kinds.plain import check_plain
from shared.kinds.scoring import compiled
from shared.kinds.spec import ArtifactUse, KindSpec, Params, Preparation, Requirement
from shared.messages.environments import Variable
from shared.policy.model.chunks import SIZES
from shared.policy.resources import chunks
from shared.runtime.patterns import POINTER, whole

MOST_MESSAGES: Final = 256
MOST_FIELDS: Final = 64
MOST_TEXT: Final = 1 << 20
"""Characters of one text."""
MOST_FILLED: Final = 8 << 20
"""Characters of all messages of a judgement, once their places are filled."""
MOST_PATTERN: Final = 4096
"""Characters of a regular expression, or of a JSON pointer."""
MOST_SCHEMA: Final = 64 << 10
"""Bytes of a JSON schema."""
MOST_INPUTS: Final = 256
"""Inputs of one action."""
MOST_TOKENS: Final = 1 << 20
"""Tokens of one sequence."""
SHOWN_CHARS: Final = 64

Text = Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]
Pointer = Annotated[str, msgspec.Meta(pattern=whole(POINTER), max_length=MOST_PATTERN)]
Factor = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message to a model."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text


Messages = Annotated[list[ChatMessage], msgspec.Meta(min_length=1, max_length=MOST_MESSAGES)]


class JudgeScore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Score in a judge's completion: by `regex` or by `schema`. A completion without a score is unparsable."""

    regex: Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_PATTERN)] | None = None
    """Regular expression with one group, in RE2's syntax, searched in the last 16,384 characters of the completion. The
    last match counts, and its group is a number: `score: ([0-9.]+)`."""
    schema: dict[str, Any] | None = None
    """JSON schema of the completion, without recursion. The engine is asked to write JSON of this schema
    (`response_format`). A completion that violates it has no score."""
    pointer: Pointer = "/score"
    """With `schema`: place of the score in the completion. It holds a number, a text that is a number, or true or
    false."""

    def __post_init__(self) -> None:
        if (self.regex is None) == (self.schema is None):
            raise ValueError(
                'write one of `regex` and `schema`: {"regex": "score: ([0-9.]+)"}, or {"schema": {"type": "object", '
                '"properties": {"score": {"type": "number"}}, "required": ["score"]}}'
            )
        if self.regex is not None:
            try:
                compiled(self.regex)
            except ValueError as error:
                raise ValueError(f"regex: {str(error).removeprefix('pattern: ')}") from error
            if self.pointer != "/score":
                raise ValueError("`pointer` belongs to `schema`; remove it")
        if self.schema is not None:
            check_plain(self.schema, "schema")
            if (size := len(msgspec.json.encode(self.schema))) > MOST_SCHEMA:
                raise ValueError(f"schema: it has {size} bytes, and may have {MOST_SCHEMA}")
            try:
                compiled_schema(self.schema)
            except ValueError as error:
                raise ValueError(f"schema: {error}") from error


class ModelParams(Params, frozen=True, kw_only=True):
    """Parameters of every kind that calls a model."""

    service: Name
    """Name of the model service."""


class ModelJudge(ModelParams, frozen=True, kw_only=True):
    """Let a model judge a sample. Its score is formed only of a completion that the model has ended itself.

    Engines read special tokens of their chat template (`<|im_end|>`) in every text. A judge whose model has such tokens
    should be given samples without them.
    """

    messages: Messages | None = None
    """Messages, sent as they are. Null: those of `template`."""
    template: Messages | None = None
    """Messages in whose `content` each place `{name}` is replaced by that entry of `fields`."""
    fields: Annotated[dict[Variable, Text], msgspec.Meta(max_length=MOST_FIELDS)] = {}
    """Texts for the places of `template`. Each place needs one. What fills a place is sent as it is, so the entry {"x":
    "{x}"} keeps the text `{x}`."""
    score: JudgeScore
    scale: Factor = 1.0
    """Factor of the score: 0.1 for marks from 0 to 10."""
    pass_at: Factor | None = None
    """Least score, after `scale`, that passes. Null: no statement whether the sample passes."""
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)] = 1024
    """Most tokens of the completion. A completion that is cut there is no verdict."""
    temperature: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0
    seed: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] | None = None
    """Seed of the first completion. The n-th one has `seed` + n - 1. Null: the engine's own."""
    attempts: Annotated[int, msgspec.Meta(ge=1, le=16)] = 3
    """Most completions. A further one is asked for if the last one is unparsable. At temperature 0 most engines repeat
    themselves."""

    def __post_init__(self) -> None:
        if (self.messages is None) == (self.template is None):
            raise ValueError("write one of `messages`, and `template` with `fields`")
        if self.template is None:
            if self.fields:
                raise ValueError("`fields` fill places of `template`, and `messages` has none; write `template`")
            return
        for place in places_in(self.template):
            if place not in self.fields:
                raise ValueError(
                    f"template: the place {{{place[:SHOWN_CHARS]}}} has no text; add it to `fields`, "
                    f'or keep the braces by "{place[:SHOWN_CHARS]}": "{{{place[:SHOWN_CHARS]}}}"'
                )
        size = sum(filled_size(message.content, self.fields) for message in self.template)
        if size > MOST_FILLED:
            raise ValueError(f"template: it has {size} characters with its fields, and may have {MOST_FILLED}")


class ScoredPair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt and an answer to it, of which the answer is scored."""

    prompt: Text
    answer: Text


class ModelScore(ModelParams, frozen=True, kw_only=True):
    """Score texts with a reward model. One input: its score is that of the action."""

    inputs: Annotated[list[Text | ScoredPair], msgspec.Meta(min_length=1, max_length=MOST_INPUTS)]
    """Texts, and pairs {"prompt": "...", "answer": "..."}. Their scores are in the output, in order. The action has a
    score only if there is one."""
    label: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] | None = None
    """Output of the model's head whose score counts. Needed if it has several."""
    truncate: bool = False
    """Cut an input that is too long for the model. False: it is refused."""
    scale: Factor = 1.0
    """Factor of the score."""
    pass_at: Factor | None = None
    """Least score of the action, after `scale`, that passes. Null: no statement."""


TextPair = Annotated[list[Text], msgspec.Meta(min_length=2, max_length=2)]
"""Two texts. (No tuple: generators of clients do not read `prefixItems`.)"""


class ModelEmbed(ModelParams, frozen=True, kw_only=True):
    """Embed texts, or compare pairs of texts by the cosine of their embeddings."""

    texts: Annotated[list[Text], msgspec.Meta(min_length=1, max_length=MOST_INPUTS)] | None = None
    """Texts whose embeddings are in the output, in order. No score is formed."""
    pairs: Annotated[list[TextPair], msgspec.Meta(min_length=1, max_length=MOST_INPUTS)] | None = None
    """Pairs whose similarities, from -1 to 1, are in the output, in order. The action has a score only if there is one
    pair."""
    truncate: bool = False
    """Cut a text that is too long for the model. False: it is refused. Only services of the API `treadle` cut."""
    scale: Factor = 1.0
    """Factor of the score."""
    pass_at: Factor | None = None
    """Least score of the action, after `scale`, that passes. Null: no statement."""

    def __post_init__(self) -> None:
        if (self.texts is None) == (self.pairs is None):
            raise ValueError('write one of `texts` and `pairs`: {"texts": ["..."]} or {"pairs": [["...", "..."]]}')


class ModelLogprob(ModelParams, frozen=True, kw_only=True):
    """Log-probabilities of given tokens, in nats, under a model: a teacher. The score of the action is their mean."""

    tokens: Annotated[list[TokenId], msgspec.Meta(min_length=2, max_length=MOST_TOKENS)] | None = None
    """Ids of the model's own tokens, from the beginning of the sequence."""
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_TEXT)] | None = None
    """Text whose tokens are taken. Only services of the API `treadle` take a text."""
    start: Annotated[int, msgspec.Meta(ge=1, lt=MOST_TOKENS)] = 1
    """Position of the first token that counts, from 0: the length of a prompt. The first token of a sequence has no
    log-probability."""

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.text is None):
            raise ValueError('write one of `tokens` and `text`: {"tokens": [1, 2, 3]} or {"text": "..."}')
        if self.tokens is not None and self.start >= len(self.tokens):
            raise ValueError(f"start: {self.start} is behind the last of {len(self.tokens)} tokens; count from 0")


EXECUTOR: Final = "gpu_manager"
GPUS: Final = "gpus"
"""GPUs of one node, as aligned chunks of 1, 2, 4 or 8."""
JUDGE: Final = "model.judge"
SCORE: Final = "model.score"
LOGPROB: Final = "model.logprob"
EMBED: Final = "model.embed"
CUDA: Final = "cuda.kernel"
KERNELS: Final = "cuda:kernel"
"""Model service of the leader's ledger that CUDA kernels use. No declared service can have this name."""


def places_in(template: list[ChatMessage]) -> list[str]:
    """Return the names of the places in a template, in order."""
    return [name for message in template for name in PLACE.findall(message.content)]


def check_template(params: Mapping[str, Any]) -> None:
    """Check what a task's stage says of its calls. Its other parameters may be in the requests.

    Raises:
        ValueError: no request makes a call of it.
    """
    for one, other in (("messages", "template"), ("messages", "fields"), ("texts", "pairs"), ("tokens", "text")):
        if params.get(one) is not None and params.get(other) is not None:
            raise ValueError(f"params: `{one}` and `{other}` exclude each other: remove one of them")


def _calling(name: str, params: type[Params]) -> KindSpec:
    return KindSpec(
        name,
        params,
        EXECUTOR,
        {GPUS: 1},
        (GPUS,),
        requirement=Requirement(GPUS, "runs on a model service and needs a GPU"),
        sizes=SIZES,
        service_by="service",
        check=check_template,
    )


RESOURCES: Final = {GPUS: chunks.GPUS}
"""Resources with properties of their own."""
KINDS: Final = (
    _calling(JUDGE, ModelJudge),
    _calling(SCORE, ModelScore),
    _calling(LOGPROB, ModelLogprob),
    _calling(EMBED, ModelEmbed),
    KindSpec(
        CUDA,
        CudaKernel,
        EXECUTOR,
        {GPUS: 1},
        (GPUS,),
        requirement=Requirement(GPUS, "runs alone on a GPU, and needs one"),
        sizes=(1,),
        uses_service=KERNELS,
        takes_artifact=ArtifactUse(),
        prepared_by=Preparation("cuda.compile", "compile", CudaProgram),
    ),
)
"""Kinds that this service executes."""
