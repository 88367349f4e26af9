"""One tenant's view of the sandbox: no interpreter ever forks programs of two tenants."""

from __future__ import annotations

import msgspec

from services.cpu_manager.sandbox.protocol import Exit, Job, PythonJob, Sandbox


class TenantSandbox:
    """The node's sandbox, with zygotes of the tenant's own.

    Zygotes hold no payload and no secret, so sharing them would leak nothing we know of; keeping them apart makes what
    we do not know of harmless too. The default tenant's are the ones that were warmed up at start.
    """

    def __init__(self, sandbox: Sandbox, tenant: str) -> None:
        self._sandbox = sandbox
        self._tenant = tenant

    async def run(self, job: Job, cores: frozenset[int]) -> Exit:
        """Run one job (see `Sandbox.run`)."""
        if isinstance(job, PythonJob) and self._tenant != "default":
            job = msgspec.structs.replace(job, zygote=f"{job.zygote}@{self._tenant}")
        return await self._sandbox.run(job, cores)

    async def close(self) -> None:
        """The node closes its sandbox itself."""
