"""Every declared kind's grader, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from services.cpu_manager.graders.answer_match import AnswerMatchGrader
from services.cpu_manager.graders.code_asserts import CodeAssertsGrader
from services.cpu_manager.graders.code_run import CodeRunGrader
from services.cpu_manager.graders.code_stdio import CodeStdioGrader
from services.cpu_manager.graders.compile_cache import CompileCache
from services.cpu_manager.graders.cuda_compile import CudaCompileGrader, CudaCompiler
from services.cpu_manager.graders.idle import NoopGrader, SleepGrader
from services.cpu_manager.graders.math_verify import MathVerifyGrader
from services.cpu_manager.graders.programs import Builder
from services.cpu_manager.graders.protocol import Grader
from services.cpu_manager.graders.python_function import PythonFunctionGrader
from services.cpu_manager.kinds import PLAIN
from services.cpu_manager.sandbox.languages import LanguageInfo


def build_graders(
    languages: Mapping[str, LanguageInfo],
    *,
    cache: CompileCache | None = None,
    cuda: CudaCompiler | None = None,
) -> Mapping[str, Grader[Any]]:
    """Return the graders of one node. They share one compile cache and work on one event loop. No IO here.

    Args:
        languages: the node's languages (`sandbox.languages.languages()`), by canonical name.
        cache: a cache of another size; None: a cache with the default bounds.
        cuda: the node's CUDA compiler; None: it has none.
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
        CudaCompileGrader(cuda or CudaCompiler("", "", "This node has no CUDA compiler.")),
    ]
    by_kind = {grader.kind: grader for grader in graders}
    return MappingProxyType({kind: by_kind[kind] for kind in PLAIN})
