"""Actions `cuda.kernel`: parameters and artifact in, verdict out. The caller has the GPU alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from services.gpu_manager.devices import SETTING, GpuDevice
from services.gpu_manager.kernels.attempt import RoleCommands
from services.gpu_manager.kernels.gpu_access import access_of
from services.gpu_manager.kernels.verdicts import judged
from shared.kinds.cuda import CudaKernel
from shared.messages.grants import Granted
from shared.node.artifacts import Artifacts, ArtifactUnavailable
from shared.policy.model.chunks import Chunk
from shared.policy.model.results import AttemptResult, lost, refused
from shared.runtime.validation import explain

_params: Final = msgspec.json.Decoder(CudaKernel)


@dataclass(frozen=True, slots=True)
class KernelActions:
    """Kernels on the GPUs of this node."""

    devices: Sequence[GpuDevice]
    artifacts: Artifacts
    library: str
    """CUDA's driver."""
    output_bytes: int
    commands: RoleCommands = field(default_factory=RoleCommands)

    def refusal(self, chunk: Chunk) -> str:
        """Return why no kernel can run on a chunk; empty if one can. Nothing is evicted for it then."""
        if chunk.size != 1 or chunk.first >= len(self.devices):
            return f"a kernel runs on one GPU, and the grant names {list(chunk.gpus)}"
        device = self.devices[chunk.first]
        if not device.measured:
            return (
                f"GPU {device.number} of this node is only described by {SETTING}: a kernel needs an NVIDIA GPU with "
                "its driver, which NVML finds"
            )
        return ""

    async def run(self, grant: Granted, chunk: Chunk) -> AttemptResult:
        """Run the kernel of a grant. Cancellation kills its processes."""
        device = self.devices[chunk.first]
        try:
            params = _params.decode(grant.params)
            access = access_of(self.library, device.minor, device.uuid)
            module = await self.artifacts.read(grant)
        except msgspec.ValidationError as error:
            return refused(f"params of {grant.work}: {explain(error, CudaKernel)}")
        except OSError as error:
            return refused(
                f"this node cannot use CUDA: {error}. Install NVIDIA's driver, or set GPU_MANAGER_CUDA_LIBRARY to its "
                "libcuda.so.1"
            )
        except ArtifactUnavailable as error:
            return lost(str(error))
        result = await judged(params, module, access, grant.timeout_s, self.commands)
        if len(result.output) > self.output_bytes:
            output = msgspec.json.encode({"truncated": True})
            result = msgspec.structs.replace(result, output=output)
        return result
