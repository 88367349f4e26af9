"""The whole demo: models alone, then a mesh of its own with room for two of them, under load and kills."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from treadle.client.asynchronous import AsyncTreadle
from treadle.model_demo.cases import Service
from treadle.model_demo.declaration import DemoDeclaration, declared
from treadle.model_demo.models import DemoModels, check_packages, write_models
from treadle.model_demo.references import LoneModel, examined
from treadle.model_demo.report import DemoProgress, new_progress
from treadle.model_demo.run import KillPlan, Run, RunPlan
from treadle.model_demo.samples import read_solutions
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

SERVICES_OF_STACK: Final = "proxy,scaling_planner,gpu_manager"
SHORT_MINUTES: Final = 3.0
"""Shorter runs have fewer reference answers, and more kills in a minute."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Parameters of the demo."""

    minutes: float
    seed: int
    data: Path
    """Data folder (TREADLE_DATA)."""

    @property
    def counts(self) -> dict[Service, int]:
        """Service -> number of reference answers."""
        if self.minutes < SHORT_MINUTES:
            return {"judge": 4, "similarity": 12, "reward": 12}
        return {"judge": 24, "similarity": 60, "reward": 60}

    @property
    def kills(self) -> KillPlan:
        """Short runs spare engines that load: a load that fails puts its engine into quarantine for half a minute."""
        return KillPlan(12.0, 8.0) if self.minutes < SHORT_MINUTES else KillPlan(25.0, 0.0)


def demonstrate_models(
    options: DemoOptions, entered: Callable[[str], None], changed: Callable[[DemoProgress], None]
) -> DemoProgress:
    """Run the demo and return its counts. Nothing is left of it. Takes `minutes`, and 15 s to 2 min before them.

    Args:
        entered: called with a line when a part begins.
        changed: called about once a second with the counts so far.
    Raises:
        ModelsMissing: packages of the models are not installed.
        ModelFailed: a model does not start or answer.
        StackError: the mesh did not come up.
        TreadleError: the mesh rejects a call, or was away for too long.
    """
    check_packages()
    with TemporaryDirectory(prefix="treadle-models-") as name, temporary_home() as home:
        folder = Path(name)
        solutions, source = read_solutions(options.data, options.seed)
        entered(f"{len(solutions):,} solutions to judge: {source}")
        models = write_models(folder)
        alone = asyncio.run(examined(models, solutions, options.counts, entered))
        declaration = declared(models, alone)
        entered(_room(declaration))
        with running_stack(home, services=SERVICES_OF_STACK, environ=declaration.environ(folder)) as stack:
            return asyncio.run(_run(stack, models, alone, declaration, options, changed))


def _room(declaration: DemoDeclaration) -> str:
    needs = ", ".join(f"{name} {entry['memory_gb']['awake']:.2f} GB" for name, entry in declaration.entries.items())
    return (
        f"one described device of {declaration.budget_gb:.2f} GB; awake: {needs}; all three awake have "
        f"{declaration.together_gb:.2f} GB"
    )


async def _run(
    stack: RunningStack,
    models: DemoModels,
    alone: dict[Service, LoneModel],
    declaration: DemoDeclaration,
    options: DemoOptions,
    changed: Callable[[DemoProgress], None],
) -> DemoProgress:
    references = {service: one.references for service, one in alone.items()}
    plan = RunPlan(options.minutes, options.seed, options.kills, references)
    counts = {service: len(found) for service, found in references.items()}
    progress = new_progress(options.minutes, declaration.budget_gb, declaration.together_gb, counts)
    async with AsyncTreadle(stack.urls["proxy"]) as client:
        return await Run(client, stack.urls["gpu_manager"], models, plan, progress).run(changed)
