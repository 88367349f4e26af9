"""One core and many tenants: they take turns, and a cancelled action leaves the core, with all its processes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import psutil
import pytest

from tests.e2e.replicas import LEASE_S, Mesh, one_core_mesh, until
from tests.e2e.trainer import Json, Trainer, trainer_at

WAIT_S = 60
MANY, FEW = 20, 4


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with one_core_mesh() as running:
        yield running


@pytest.fixture
async def trainers(mesh: Mesh) -> AsyncIterator[tuple[Trainer, Trainer]]:
    """Two tenants."""
    async with AsyncExitStack() as entered:
        url = mesh.proxies[0].url
        big = await entered.enter_async_context(trainer_at(url, tenant="big"))
        small = await entered.enter_async_context(trainer_at(url, tenant="small"))
        yield big, small


async def submit(trainer: Trainer, body: Json) -> str:
    status, standing = await trainer.call("POST", "/v1/actions", json=body)
    assert status == 202, standing
    return str(standing["id"])


async def finished(trainer: Trainer, action: str) -> Json:
    status, answer = await trainer.call("GET", f"/v1/actions/{action}?wait={WAIT_S}")
    assert status == 200, answer
    return dict(answer)


def holding(seconds: float) -> Json:
    """Something that has the core for so long."""
    return {"kind": "sleep", "params": {"seconds": seconds}, "units": {"cores": 1}, "timeout_s": 900}


async def test_a_small_tenant_does_not_wait_for_all_that_a_big_one_sent_before(
    trainers: tuple[Trainer, Trainer],
) -> None:
    big, small = trainers
    blocker = await submit(big, holding(600))
    crowd = [await submit(big, holding(0.05)) for _ in range(MANY)]
    guests = [await submit(small, holding(0.05)) for _ in range(FEW)]
    assert (await big.call("DELETE", f"/v1/actions/{blocker}"))[0] in (200, 202)
    ended = {name: await finished(small, name) for name in [*crowd, *guests]}
    assert {answer["ended"] for answer in ended.values()} == {"ok"}
    at = {name: answer["arrived_at"] + answer["act"]["total_s"] for name, answer in ended.items()}
    last_guest = max(at[name] for name in guests)
    before = sum(at[name] < last_guest for name in crowd)
    assert before < MANY / 2, f"{before} of {MANY} went before the last of {FEW}"


async def test_cancelling_kills_every_process_of_the_action_and_frees_its_core(
    mesh: Mesh, trainers: tuple[Trainer, Trainer]
) -> None:
    trainer, _ = trainers
    mark = f"treadle-{uuid.uuid4().hex}"
    code = f"(exec -a {mark} sleep 900) &\nsetsid bash -c 'exec -a {mark} sleep 900' &\nexec -a {mark} sleep 900"
    params = {"code": code, "language": "bash", "run_timeout_s": 900}
    action = await submit(trainer, {"kind": "code.run", "params": params, "timeout_s": 900})
    await until(lambda: len(marked(mark)) == 3)
    waiting = asyncio.create_task(finished(trainer, await submit(trainer, holding(0))))
    status, _ = await trainer.call("DELETE", f"/v1/actions/{action}")
    assert status in (200, 202)
    assert (await waiting)["ended"] == "ok"
    assert (await finished(trainer, action))["ended"] == "cancelled"
    assert marked(mark) == []


def marked(mark: str) -> list[int]:
    """Processes of this machine that go by this name."""
    processes = psutil.process_iter(["cmdline"])
    return [process.pid for process in processes if (process.info["cmdline"] or [""])[0] == mark]


async def test_tenants_with_weights_share_the_core_by_them(trainers: tuple[Trainer, Trainer]) -> None:
    """Of weights 3 and 1, the one has about three quarters of the first answers while both wait."""
    big, small = trainers
    for trainer in trainers:  # before its duration is learned, an action is charged its timeout
        await finished(trainer, await submit(trainer, holding(0.05)))
    blocker = await submit(big, holding(600))
    assert (await big.call("PUT", "/v1/tenants/big", json={"weight": 3.0}))[0] == 200
    await asyncio.sleep(2 * LEASE_S)  # the leader reads changes three times a lease
    many = [await submit(big, holding(0.05)) for _ in range(2 * MANY)]
    others = [await submit(small, holding(0.05)) for _ in range(2 * MANY)]
    assert (await big.call("DELETE", f"/v1/actions/{blocker}"))[0] in (200, 202)
    ended = {name: await finished(big if name in many else small, name) for name in [*many, *others]}
    assert (await big.call("DELETE", "/v1/tenants/big"))[0] == 204
    first = sorted(ended, key=lambda name: ended[name]["arrived_at"] + ended[name]["act"]["total_s"])[: 2 * MANY]
    part = sum(name in many for name in first) / len(first)
    assert 0.6 < part < 0.9, f"{part:.0%} of the first {len(first)}"
