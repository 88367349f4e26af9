"""Liveness of written backends: alive, at work, or hung."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from services.gpu_manager.backends.protocol import Capabilities, Footprint, Residency
from services.gpu_manager.liveness import READINGS, checked_liveness, read_liveness
from shared.policy.model.chunks import Chunk
from shared.policy.serving.model import InstanceId
from tests.services.gpu_manager.test_serving import WrittenBackend


@dataclass
class Silent(WrittenBackend):
    """Reports these states, and CPU seconds, one after the other. The last one stays."""

    states: list[Residency] = field(default_factory=lambda: ["unknown"])
    cpu_s: list[float | None] = field(default_factory=lambda: [1.0])
    readings: int = 0

    async def residency(self) -> Residency:
        self.readings += 1
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    async def footprint(self) -> Footprint:
        return Footprint(None, None, self.cpu_s.pop(0) if len(self.cpu_s) > 1 else self.cpu_s[0])


async def found(**fields: object) -> tuple[str, int]:
    backend = Silent("a", set(), **fields)  # type: ignore[arg-type]
    liveness, _ = await read_liveness(backend, pause_s=0.0)
    return liveness, backend.readings


async def test_one_answer_is_enough() -> None:
    assert await found(states=["unknown", "unknown", "resident"]) == ("alive", 3)
    assert await found(states=["resident"]) == ("alive", 1)


@pytest.mark.parametrize(
    ("cpu_s", "liveness"),
    [([1.0], "hung"), ([1.0, 9.0], "silent"), ([9.0, 1.0], "silent"), ([None], "silent"), ([1.0, None], "silent")],
    ids=["no CPU time", "CPU time", "a child has ended", "not measured", "not measured at the end"],
)
async def test_a_process_that_takes_cpu_time_may_be_at_work(cpu_s: list[float | None], liveness: str) -> None:
    assert await found(cpu_s=cpu_s) == (liveness, READINGS)


async def test_a_kind_that_answers_at_work_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    flags: Capabilities = replace(WrittenBackend.flags, answers_at_work=True)
    monkeypatch.setattr(Silent, "flags", flags)
    assert (await found(cpu_s=[1.0, 9.0]))[0] == "hung"
    assert (await found(states=["asleep1"]))[0] == "hung", "it is not resident either"


@dataclass
class Broken(WrittenBackend):
    """Its state cannot be read by a bug of ours."""

    async def residency(self) -> Residency:
        raise LookupError("a bug")


async def test_a_check_that_fails_by_a_bug_shows_no_hang() -> None:
    found = await checked_liveness(InstanceId("a", Chunk(0, 1)), Broken("a", set()))
    assert found == ("silent", "internal error: LookupError")
