"""A busy engine's view of a container may be an earlier one for a moment: a handle believes only what lasts."""

from __future__ import annotations

from typing import Any, cast

import pytest

from services.cpu_manager.environments.docker import engine_handle
from services.cpu_manager.environments.docker.engine import ContainerEngine, EngineRefusal
from services.cpu_manager.environments.docker.engine_handle import EngineHandle
from services.cpu_manager.environments.handles import Gone


class _Stream:
    """A relay that ends before it has connected."""

    async def read_out(self) -> None:
        return None

    async def close(self) -> None: ...


class _StaleEngine:
    """An engine that refuses the first calls, as if an earlier state were the present one."""

    def __init__(self, refusals: int) -> None:
        self.frozen = False
        self.calls = 0
        self._refusals = refusals

    async def post(self, path: str, what: str, body: dict[str, Any] | None = None) -> None:
        call = path.rpartition("/")[2]
        self._refuse(409, "is not paused" if call == "unpause" else "Container x is already paused")
        self.frozen = call == "pause"

    async def exec(self, container: str, command: list[str]) -> _Stream:
        self._refuse(409, "Container x is paused, unpause the container before exec")
        return _Stream()

    def _refuse(self, status: int, message: str) -> None:
        self.calls += 1
        if self.calls <= self._refusals:
            raise EngineRefusal(status, message)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_handle, "_STALE_S", (0.0, 0.0, 0.0))


def _handle(engine: _StaleEngine, *, paused: bool) -> EngineHandle:
    return EngineHandle(cast("ContainerEngine", engine), "x", ["python3"], paused=paused)


async def test_a_container_is_frozen_although_the_engine_takes_it_for_frozen_at_first() -> None:
    engine = _StaleEngine(refusals=3)
    await _handle(engine, paused=False).pause()
    assert engine.frozen


async def test_a_container_is_thawed_although_the_engine_takes_it_for_thawed_at_first() -> None:
    engine = _StaleEngine(refusals=3)
    engine.frozen = True
    await _handle(engine, paused=True).resume(frozenset())
    assert not engine.frozen


async def test_an_answer_that_lasts_is_believed() -> None:
    engine = _StaleEngine(refusals=99)
    handle = _handle(engine, paused=False)
    await handle.pause()
    await handle.pause()
    assert (engine.calls, handle.alive) == (4, True)


async def test_a_relay_starts_although_the_engine_takes_the_container_for_frozen_at_first() -> None:
    engine = _StaleEngine(refusals=3)
    with pytest.raises(ConnectionRefusedError):
        await _handle(engine, paused=False).connect()
    assert engine.calls == 4


async def test_a_container_that_stays_frozen_is_gone_for_its_relay() -> None:
    handle = _handle(_StaleEngine(refusals=99), paused=False)
    with pytest.raises(Gone, match="is paused"):
        await handle.connect()
    assert not handle.alive
