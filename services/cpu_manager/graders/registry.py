"""Every kind's grader, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from services.cpu_manager.graders.answer_match import AnswerMatchGrader
from services.cpu_manager.graders.code_asserts import CodeAssertsGrader
from services.cpu_manager.graders.code_run import CodeRunGrader
from services.cpu_manager.graders.code_stdio import CodeStdioGrader
from services.cpu_manager.graders.compile_cache import CompileCache
from services.cpu_manager.graders.idle import NoopGrader, SleepGrader
from services.cpu_manager.graders.math_verify import MathVerifyGrader
from services.cpu_manager.graders.programs import Builder
from services.cpu_manager.graders.protocol import Grader
from services.cpu_manager.graders.python_function import PythonFunctionGrader
from services.cpu_manager.sandbox.languages import LanguageInfo


def build_graders(
    languages: Mapping[str, LanguageInfo], *, cache: CompileCache | None = None
) -> Mapping[str, Grader[Any]]:
    """The graders of one node, which share one compile cache. No IO here; all graders work on one event loop.

    Args:
        languages: what the node has (`sandbox.languages.languages()`), by canonical name.
        cache: for a size of its own; None makes one with the usual bounds.
    """
    builder = Builder(languages, cache if cache is not None else CompileCache())
    graders: list[Grader[Any]] = [
        NoopGrader(),
        SleepGrader(),
        CodeRunGrader(builder),
        CodeAssertsGrader(),
        CodeStdioGrader(builder),
        MathVerifyGrader(),
        AnswerMatchGrader(),
        PythonFunctionGrader(),
    ]
    return MappingProxyType({grader.kind: grader for grader in graders})
