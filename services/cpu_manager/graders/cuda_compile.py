"""`cuda.compile`: compiles a CUDA source to a module, which is the artifact of the stage.

A source that does not compile fails, with the compiler's text. A compiler that fails with a trivial source too is a
failure of this node: the action is refused. So a missing host compiler looks like no error of the sample.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.cpu_manager.graders.programs import COMPILE_DISK_BYTES, COMPILE_PIDS
from services.cpu_manager.graders.protocol import GradingContext, Verdict
from services.cpu_manager.graders.verdicts import LOST, how_it_ended, lost, refused, verdict_of_end, wrong
from services.cpu_manager.sandbox.protocol import ExecJob, Exit, Limits
from shared.kinds.cuda import MOST_MODULE, CudaCompile
from shared.policy.model.results import Evidence

USUAL: Final = "/usr/local/cuda/bin/nvcc"
SETTING: Final = "CPU_MANAGER_NVCC"
ARCH_SETTING: Final = "CPU_MANAGER_CUDA_ARCH"
MOST_TEXT: Final = 8000
"""Characters of the compiler's text in an output: the beginning, which has the first error."""
TRIVIAL: Final = 'extern "C" __global__ void trivial() {}\n'
_VERSION_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class CudaCompiler:
    """The compiler of this node."""

    path: str
    """Of nvcc; empty: there is none."""
    arch: str
    """Default target."""
    missing: str = ""
    """Why there is none, for people."""

    @property
    def version(self) -> str:
        """Release that nvcc prints; empty if it does not run. Starts it: 10 ms."""
        if not self.path:
            return ""
        try:
            said = subprocess.run(
                [self.path, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return ""
        return next((line.strip() for line in said.stdout.splitlines() if "release" in line), "")


def find_compiler(path: str, arch: str, search: str | None = None) -> CudaCompiler:
    """Return the compiler of a setting; without one, nvcc on the path or at its usual place.

    Args:
        path: `CPU_MANAGER_NVCC`; empty: search.
        arch: `CPU_MANAGER_CUDA_ARCH`.
        search: directories, separated by `:`; None: those of PATH.
    """
    found = path or shutil.which("nvcc", path=search) or USUAL
    if Path(found).is_file():
        return CudaCompiler(str(Path(found).resolve()), arch)
    why = f"{SETTING} is {path}, where no file is" if path else "nvcc is neither on PATH nor at " + USUAL
    return CudaCompiler(
        "", arch, f"This node has no CUDA compiler: {why}. Install NVIDIA's CUDA toolkit (nvcc), or set {SETTING}."
    )


class CudaCompileGrader:
    """Passes if the source compiles."""

    kind = "cuda.compile"
    params = CudaCompile
    evidence: Evidence = "separate"

    def __init__(self, compiler: CudaCompiler) -> None:
        self._compiler = compiler
        self._working: set[str] = set()
        """Targets for which the compiler has compiled a source."""

    async def grade(self, params: CudaCompile, context: GradingContext) -> Verdict:
        """Compile within the stage's limit."""
        if not self._compiler.path:
            return refused(self._compiler.missing)
        arch = params.arch or self._compiler.arch
        limits = _limits(params, context)
        end = await context.sandbox.run(self._job(params.code, arch, limits), context.cores)
        if end.ended_by in LOST:
            return lost(end)
        module = end.files.get(_module(arch))
        if end.ended_by == "exit" and end.exit_code == 0 and module is not None:
            self._working.add(arch)
            return _compiled(end, module, arch)
        if (decided := verdict_of_end(end)) is not None:
            return decided
        if arch not in self._working and (why := await self._fails(arch, limits, context)):
            return refused(f"The CUDA compiler of this node does not work for {arch}: {why}")
        text = _text(end)
        reason = f"The source does not compile: nvcc {how_it_ended(end)}."
        return wrong(end, "CompileError", reason, compiler=text)

    async def _fails(self, arch: str, limits: Limits, context: GradingContext) -> str:
        """Return why the compiler fails with a trivial source; empty if it does not."""
        end = await context.sandbox.run(self._job(TRIVIAL, arch, limits), context.cores)
        if end.ended_by == "exit" and end.exit_code == 0:
            self._working.add(arch)
            return ""
        return (_text(end) or end.detail or how_it_ended(end))[:500]

    def _job(self, code: str, arch: str, limits: Limits) -> ExecJob:
        form = "-ptx" if _is_ptx(arch) else "-cubin"
        argv = (self._compiler.path, form, f"-arch={arch}", "-o", _module(arch), "kernel.cu")
        files = {"kernel.cu": code.encode(errors="surrogatepass")}
        return ExecJob(argv=argv, files=files, fetch=(_module(arch),), limits=limits)


def _limits(params: CudaCompile, context: GradingContext) -> Limits:
    wall_s = min(params.timeout_s, context.timeout_s)
    return Limits(
        wall_s=wall_s,
        cpu_s=wall_s * len(context.cores) + 1.0,
        memory_bytes=params.memory_mb << 20,
        pids=COMPILE_PIDS,
        disk_bytes=COMPILE_DISK_BYTES,
    )


def _compiled(end: Exit, module: bytes, arch: str) -> Verdict:
    if len(module) > MOST_MODULE:
        reason = f"The module has {len(module)} bytes, and may have {MOST_MODULE}."
        return wrong(end, "ModuleTooLarge", reason)
    output = {"arch": arch, "module_bytes": len(module), "compiler": _text(end)}
    return Verdict(
        status="ok", passed=True, output=output, cpu_s=end.cpu_s, peak_memory_bytes=end.peak_memory_bytes,
        artifact=module,
    )  # fmt: skip


def _text(end: Exit) -> str:
    return (end.stdout + end.stderr)[: 4 * MOST_TEXT].decode("utf-8", "replace")[:MOST_TEXT]


def _is_ptx(arch: str) -> bool:
    return arch.startswith("compute_")


def _module(arch: str) -> str:
    return "kernel.ptx" if _is_ptx(arch) else "kernel.cubin"
