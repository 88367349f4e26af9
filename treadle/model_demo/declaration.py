"""Declaration of the three services, and the memory budget that has room for two of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from treadle.model_demo.cases import MODEL, SERVICES, TOLERANCE, Service
from treadle.model_demo.models import ALLOCATOR, DemoModels
from treadle.model_demo.references import LoneModel

AWAKE_MARGIN_GB: Final[Mapping[Service, float]] = {"judge": 0.045, "similarity": 0.015, "reward": 0.015}
ASLEEP_MARGIN_GB: Final = 0.01
BUDGET_MARGIN_GB: Final = 0.005
CONCURRENCY: Final[Mapping[Service, int]] = {"judge": 2, "similarity": 4, "reward": 4}


@dataclass(frozen=True, slots=True)
class DemoDeclaration:
    """Settings of the GPU manager."""

    entries: dict[str, dict[str, Any]]
    budget_gb: float
    """Memory of the described device."""
    together_gb: float
    """Measured memory of all three while they are awake: more than the budget."""

    def environ(self, folder: Path) -> dict[str, str]:
        """Write the entries into a folder, and return the settings that name them."""
        path = folder / "services.json"
        path.write_text(json.dumps(self.entries, indent=1))
        return {
            "GPU_MANAGER_SERVICES": str(path),
            "GPU_MANAGER_DEVICES": json.dumps([{"memory_gb": self.budget_gb}]),
            "CUDA_VISIBLE_DEVICES": "",
        }


def declared(models: DemoModels, alone: Mapping[Service, LoneModel]) -> DemoDeclaration:
    """Return the declaration. Room for two: each two awake fit beside the sleeping third, and all three do not."""
    awake = {service: round(alone[service].awake_gb + AWAKE_MARGIN_GB[service], 3) for service in SERVICES}
    asleep = {service: round(alone[service].asleep_gb + ASLEEP_MARGIN_GB, 3) for service in SERVICES}
    pairs = combinations(SERVICES, 2)
    budget = max(sum(awake[one] if one in pair else asleep[one] for one in SERVICES) for pair in pairs)
    return DemoDeclaration(
        {service: _entry(models, alone[service], awake[service], asleep[service]) for service in SERVICES},
        round(budget + BUDGET_MARGIN_GB, 3),
        sum(alone[service].awake_gb for service in SERVICES),
    )


def _entry(models: DemoModels, alone: LoneModel, awake_gb: float, asleep_gb: float) -> dict[str, Any]:
    service = alone.service
    common = {
        "command": models.command(service),
        "memory_gb": {"awake": awake_gb, "asleep": asleep_gb, "host": 0.1},
        "concurrency": CONCURRENCY[service],
        "min_residency_s": 1,
        "start_s": 120,
        "env": dict(ALLOCATOR),
    }
    if service == "judge":
        known: dict[str, Any] = {"prompt": "2+2=", "expect": "4"}
        environ = {**ALLOCATOR, "VLLM_SERVER_DEV_MODE": "1"}
        return {**common, "backend": "vllm", "model": MODEL, "env": environ, "canary": known}
    reference = alone.references[0]
    known = {
        "path": reference.case.path,
        "body": reference.case.body,
        "pointer": "/similarities" if service == "similarity" else "/scores",
        "expect": reference.value,
        "tolerance": TOLERANCE,
    }
    return {**common, "backend": "torch", "api": "treadle", "model": str(models.path_of(service)), "canary": known}
