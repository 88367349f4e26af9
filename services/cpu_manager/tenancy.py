"""One tenant's view of the sandbox: no interpreter forks programs of two tenants."""

from __future__ import annotations

import msgspec

from services.cpu_manager.sandbox.protocol import Exit, Job, PythonJob, Sandbox


class TenantSandbox:
    """The node's sandbox, with separate zygotes for this tenant.

    Zygotes hold no payload and no secret, so no leak between tenants is known. Separate zygotes also prevent unknown
    ones. The default tenant uses the zygotes that were started first.
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
        """Does nothing: the node closes its sandbox itself."""
