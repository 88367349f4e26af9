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
from services.cpu_manager.graders.programs import Builder, Toolchain
from services.cpu_manager.graders.protocol import Grader
from services.cpu_manager.graders.python_function import PythonFunctionGrader


def build_graders(toolchain: Toolchain, *, cache: CompileCache | None = None) -> Mapping[str, Grader[Any]]:
    """The graders of one node: they share its toolchain and one compile cache. One event loop, no IO here."""
    builder = Builder(toolchain, cache if cache is not None else CompileCache())
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
