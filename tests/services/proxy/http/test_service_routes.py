"""/v1/services: declarations are checked by what nodes report, stored, shown and removed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import msgspec
import pytest
from redis.asyncio import Redis

from services.proxy.app import create_app
from services.proxy.settings import ProxySettings
from shared.bus.model_services import FRESH_S, declare_service, publish_page, read_declared
from shared.messages.model_services import EngineState, GpuState, ServiceOffer, ServingPage
from shared.model_services.entries import MOST_SERVICES, read_entries
from shared.model_services.references import MOST_BODY, Declaration, ServiceReference, facts_of
from shared.model_services.shown import shown
from tests.services.proxy.in_process import serving
from tests.shared.model_services.test_entries import JUDGE, entry
from tests.shared.model_services.test_references import ATTACKS, ENV

FILE = read_entries(msgspec.json.encode({"judge-a": entry(env=ENV), "wide": entry(degrees=[1, 2])}))


@pytest.fixture
async def http(redis_url: str) -> AsyncIterator[aiohttp.ClientSession]:
    settings = ProxySettings.model_validate({"treadle": {"redis_url": redis_url}})
    async with serving(create_app(settings)) as url, aiohttp.ClientSession(url) as session:
        yield session


async def ask(http: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
    async with http.request(method, f"/v1/services{path}", data=data) as reply:
        content = await reply.read()
        return reply.status, msgspec.json.decode(content) if content else None


async def publish(
    redis: Redis, node: str = "gpu-1", *, allow: bool = False, engines: Sequence[EngineState] = (), **fields: Any
) -> None:
    services = {
        name: ServiceOffer(backend=one.backend, api=one.api, model=one.model, degrees=one.degrees,
                           concurrency=one.concurrency, awake_gb=16, shown=shown(one, with_commands=allow))
        for name, one in FILE.items()
    }  # fmt: skip
    page = ServingPage(
        node=node, incarnation="1", at=time.time(), services=services, engines=list(engines), allows_commands=allow,
        file={name: facts_of(one) for name, one in FILE.items()}, **{"gpus": [], **fields},
    )  # fmt: skip
    await publish_page(redis, page)


async def test_a_reference_is_stored_and_shown(http: aiohttp.ClientSession, valkey: Redis) -> None:
    await publish(valkey)
    status, view = await ask(http, "PUT", "/second", {"entry": "judge-a", "concurrency": 3})
    assert status == 200, view
    assert (view["source"], view["refers_to"], view["nodes"], view["pending"]) == ("rest", "judge-a", [], ["gpu-1"])
    assert (view["state"], view["why"]) == ("cold", "no node has it yet: none has applied its declaration")
    stored = await read_declared(valkey)
    assert stored.services["second"].declaration == Declaration(
        reference=ServiceReference(entry="judge-a", concurrency=3)
    )
    await publish(valkey, change=stored.change, problems={"second": "there is no program"})
    _, view = await ask(http, "GET", "/second")
    assert (view["pending"], view["problems"]) == ([], [{"node": "gpu-1", "why": "there is no program"}])
    _, every = await ask(http, "GET", "")
    assert [(one["name"], one["source"]) for one in every["services"]] == [
        ("judge-a", "file"), ("second", "rest"), ("wide", "file"),
    ]  # fmt: skip


async def test_a_declared_service_without_any_gpu_manager_says_so(http: aiohttp.ClientSession, valkey: Redis) -> None:
    reference = Declaration(reference=ServiceReference(entry="judge-a"))
    assert await declare_service(valkey, "second", reference, most=MOST_SERVICES)
    _, view = await ask(http, "GET", "/second")
    assert (view["state"], view["why"]) == ("cold", "no node has it: no GPU manager reports to this mesh")


async def test_gpus_are_shown_with_their_ownership(http: aiohttp.ClientSession, valkey: Redis) -> None:
    held = GpuState(number=0, name="H", memory_gb=80.0, ownership="held")
    away = GpuState(number=1, name="H", memory_gb=80.0, ownership="unknown", why="the hook on_acquire failed: no")
    await publish(valkey, "gpu-2", gpus=[held, away])
    await publish(valkey, "gpu-1", gpus=[GpuState(number=0, name="L", memory_gb=24.0)])
    _, every = await ask(http, "GET", "")
    assert [tuple(one.values()) for one in every["gpus"]] == [
        ("gpu-1", 0, "L", 24.0, "", ""),
        ("gpu-2", 0, "H", 80.0, "held", ""),
        ("gpu-2", 1, "H", 80.0, "unknown", "the hook on_acquire failed: no"),
    ]


async def test_an_address_is_shown_with_the_end_of_its_lease(http: aiohttp.ClientSession, valkey: Redis) -> None:
    resident = EngineState(service="judge-a", gpus=[0], state="resident", since=1.0, address="http://127.0.0.1:5")
    asleep = EngineState(service="judge-a", gpus=[1], state="evicted", since=1.0)
    before = time.time()
    await publish(valkey, engines=[resident, asleep])
    _, view = await ask(http, "GET", "/judge-a")
    first, second = view["engines"]
    assert (first["address"], second["address"], second["lease_until"]) == ("http://127.0.0.1:5", "", None)
    assert before + FRESH_S <= first["lease_until"] <= time.time() + FRESH_S


async def test_the_state_of_a_service_is_that_of_its_nearest_engine(http: aiohttp.ClientSession, valkey: Redis) -> None:
    async def states() -> dict[str, tuple[str, str]]:
        _, every = await ask(http, "GET", "")
        return {one["name"]: (one["state"], one["why"]) for one in every["services"]}

    def engine(gpu: int, state: str, why: str) -> EngineState:
        return EngineState(service="judge-a", gpus=[gpu], state=state, since=1.0, why=why)

    await publish(valkey)
    assert await states() == dict.fromkeys(("judge-a", "wide"), ("cold", "no action has needed it"))
    stopped, broken = engine(0, "cold", "room for wide on GPU 0"), engine(1, "quarantined", "its canary failed")
    await publish(valkey, engines=[broken, stopped])
    assert (await states())["judge-a"] == ("cold", "room for wide on GPU 0")
    await publish(valkey, engines=[broken, engine(0, "running", "")])
    assert (await states())["judge-a"] == ("running", "")
    await publish(valkey, engines=[broken], change=1, problems={"wide": "there is no program"})
    assert await states() == {
        "judge-a": ("quarantined", "its canary failed"),
        "wide": ("cold", "gpu-1: there is no program"),
    }


async def test_an_entry_of_a_file_that_no_node_can_use_is_quarantined_with_its_reason(
    http: aiohttp.ClientSession, valkey: Redis
) -> None:
    why = "backend: must be one of process, sglang, torch, vllm, not 'tgi'"
    await publish(valkey, problems={"typo": why}, wrong=["typo"])
    status, view = await ask(http, "GET", "/typo")
    assert (status, view["state"], view["why"]) == (200, "quarantined", f"gpu-1: {why}")
    assert (view["source"], view["nodes"], view["problems"]) == ("file", [], [{"node": "gpu-1", "why": why}])
    _, every = await ask(http, "GET", "")
    assert [one["name"] for one in every["services"]] == ["judge-a", "typo", "wide"]
    status, problem = await ask(http, "DELETE", "/typo")
    assert (status, "remove it there" in problem["detail"]) == (409, True)
    status, problem = await ask(http, "PUT", "/new", {"entry": "typo"})
    assert (status, problem["detail"]) == (422, f"entry: gpu-1 cannot use 'typo': {why}")
    await publish(valkey, allow=True, problems={"typo": why}, wrong=["typo"])
    assert (await ask(http, "PUT", "/typo", JUDGE))[0] == 409


async def test_values_of_environments_and_commands_are_not_shown(http: aiohttp.ClientSession, valkey: Redis) -> None:
    await publish(valkey)
    _, view = await ask(http, "GET", "/judge-a")
    assert (view["entry"]["env"], view["entry"]["command"]) == (sorted(ENV), {})
    assert "secret" not in str(view)
    await publish(valkey, allow=True)
    _, view = await ask(http, "GET", "/judge-a")
    assert view["entry"]["command"] == {"1": JUDGE["command"]}
    assert "secret" not in str(view)


async def test_a_whole_entry_needs_a_node_that_allows_it(http: aiohttp.ClientSession, valkey: Redis) -> None:
    status, problem = await ask(http, "PUT", "/mine", JUDGE)
    assert (status, problem["type"].rpartition("/")[2]) == (403, "forbidden")
    await publish(valkey)
    status, problem = await ask(http, "PUT", "/mine", JUDGE)
    assert status == 403
    assert "GPU_MANAGER_ALLOW_COMMANDS=true" in problem["detail"]
    assert not (await read_declared(valkey)).services
    await publish(valkey, "gpu-2", allow=True)
    status, view = await ask(http, "PUT", "/mine", entry(env=ENV))
    assert (status, view["source"], view["model"]) == (200, "rest", "judge-a")
    assert (view["entry"]["command"], view["entry"]["env"]) == ({}, sorted(ENV)), "no node has confirmed its permission"
    status, problem = await ask(http, "PUT", "/mine", entry(memory_gb=None))
    assert (status, "memory_gb" in problem["detail"]) == (422, True)


async def test_memory_may_be_declared_by_degree(http: aiohttp.ClientSession, valkey: Redis) -> None:
    await publish(valkey, allow=True)
    memory = {"awake": {"1": 60, "2": 32}, "asleep": 2}
    status, view = await ask(http, "PUT", "/split", entry(degrees=[1, 2], memory_gb=memory))
    assert (status, view["awake_gb"]) == (200, 60)
    by_degree = {"1": {"awake": 60, "asleep": 2}, "2": {"awake": 32, "asleep": 2}}
    assert view["entry"]["memory_gb_by_degree"] == by_degree
    assert (await ask(http, "GET", "/split"))[1]["entry"] == view["entry"]
    declared = (await read_declared(valkey)).services["split"].declaration
    assert declared is not None
    assert declared.whole is not None
    assert declared.whole.awake_gb_by == {1: 60, 2: 32}
    for wrong, message in (
        ({"awake": {"1": 60}}, 'memory_gb.awake: degree 2 has none; add "2": ... or remove it from `degrees`'),
        ({"awake": {"1": 60, "2": 32, "8": 9}}, "memory_gb.awake: 8 is not in `degrees`, [1, 2]; add it there, or"),
    ):
        status, problem = await ask(http, "PUT", "/wrong", entry(degrees=[1, 2], memory_gb=wrong))
        assert (status, problem["type"].rpartition("/")[2]) == (422, "bad-request")
        assert message in problem["detail"]


@pytest.mark.parametrize("body", ATTACKS, ids=range(len(ATTACKS)))
async def test_no_attack_is_stored(http: aiohttp.ClientSession, valkey: Redis, body: Any) -> None:
    await publish(valkey)
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    status, problem = await ask(http, "PUT", "/judge-a", raw)
    assert status in (403, 409, 422), problem
    assert problem["detail"]
    assert not (await read_declared(valkey)).services


async def test_names_of_a_file_keep_their_entry(http: aiohttp.ClientSession, valkey: Redis) -> None:
    await publish(valkey, allow=True)
    for body in ({"entry": "wide"}, JUDGE):
        status, problem = await ask(http, "PUT", "/judge-a", body)
        assert (status, "file GPU_MANAGER_SERVICES of the node gpu-1" in problem["detail"]) == (409, True)
    status, problem = await ask(http, "PUT", "/x", {"entry": "nobody"})
    assert (status, "the entries are judge-a, wide" in problem["detail"]) == (422, True)
    status, problem = await ask(http, "PUT", "/x", {"entry": "judge-a", "degrees": [2]})
    assert (status, problem["detail"].startswith("degrees: [2] should be")) == (422, True)


async def test_a_declaration_is_removed_and_an_entry_of_a_file_is_not(
    http: aiohttp.ClientSession, valkey: Redis
) -> None:
    await publish(valkey)
    await ask(http, "PUT", "/judge-a", {"entry": "judge-a", "priority": 3})
    assert (await ask(http, "DELETE", "/judge-a"))[0] == 204
    status, problem = await ask(http, "DELETE", "/judge-a")
    assert (status, "remove it there" in problem["detail"]) == (409, True)
    assert (await ask(http, "DELETE", "/nobody"))[0] == 204
    assert (await ask(http, "GET", "/nobody"))[0] == 404


async def test_bodies_and_their_number_are_bounded(http: aiohttp.ClientSession, valkey: Redis) -> None:
    await publish(valkey)
    assert (await ask(http, "PUT", "/x", b" " * MOST_BODY + b'{"entry": "judge-a"}'))[0] == 413
    one = Declaration(reference=ServiceReference(entry="judge-a"))
    for number in range(MOST_SERVICES - 2):
        assert await declare_service(valkey, f"s{number}", one, most=MOST_SERVICES)
    status, problem = await ask(http, "PUT", "/x", {"entry": "judge-a"})
    assert (status, "there are 256 model services" in problem["detail"]) == (422, True)
    assert (await ask(http, "PUT", "/s7", {"entry": "judge-a", "priority": 1}))[0] == 200, "it exists already"
    for name in ("y", "z"):
        assert await declare_service(valkey, name, one, most=MOST_SERVICES)
    assert await declare_service(valkey, "w", one, most=MOST_SERVICES) == 0, "the store has the bound itself"
