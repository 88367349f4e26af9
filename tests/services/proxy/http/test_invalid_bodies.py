"""Invalid bodies and parameters: every route names the field and what to write instead, whatever the content type."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from services.proxy.app import create_app
from services.proxy.settings import ProxySettings
from shared.runtime.settings import load
from tests.services.proxy.in_process import serving

NAME = "must be 1 to 64 letters, digits, '.', '_' and '-', beginning with a letter or a digit"
ACTION_FIELDS = (
    "`kind`, `params`, `request_id`, `units`, `elasticity`, `duration_s`, `quotas`, `node_class`, `timeout_s`, "
    "`budget_s`, `priority`, `trajectory`"
)
STAGE_FIELDS = (
    "`name`, `kind`, `params`, `units`, `elasticity`, `duration_s`, `quotas`, `node_class`, `timeout_s`, "
    "`timeout_score`, `error_score`, `exception_score`, `worker_cost`"
)
ENVIRONMENT_FIELDS = (
    "`image`, `memory_mb`, `disk_mb`, `pids`, `env`, `setup`, `setup_timeout_s`, `workdir`, `network`, `model`, "
    "`read_only`, `idle_s`, `lifetime_s`"
)
REWARD_FIELDS = "`batch`, `task`, `request_id`, `params`, `stage_params`, `priority`, `trajectory`"
ELASTICITIES = '{"1": 1.0, "4": 0.8}, {"model": "amdahl", "serial": s}, or {"model": "power", "exponent": e}'
KINDS = (
    "noop, sleep, code.run, code.asserts, code.stdio, math.verify, answer.match, python.function, "
    "cuda.compile, model.judge, model.score, model.logprob, model.embed, cuda.kernel, http, search.retrieve"
)
ENVIRONMENT_KINDS = "env.exec, env.bash, env.read, env.write, env.upload, env.download, env.list, env.close_session"
TASK = "/v1/tasks/known"
LONG, CUT = "x" * 1000, "x" * 64

CASES: list[tuple[str, str, Any, str]] = [
    # by msgspec, in bare ASGI
    ("POST", "/v1/actions", {"kidn": "noop"}, f"unknown field `kidn`; the fields are {ACTION_FIELDS}"),
    ("POST", "/v1/actions", {}, "missing field `kind`"),
    ("POST", "/v1/actions", [], "the body must be an object, not a list"),
    ("POST", "/v1/actions", {"kind": "dance"}, f"unknown kind 'dance'; there are {KINDS}"),
    ("POST", "/v1/actions", {"kind": LONG}, f"unknown kind '{CUT}'; there are {KINDS}"),
    ("POST", "/v1/actions", {LONG: 1}, f"unknown field `{CUT}`; the fields are {ACTION_FIELDS}"),
    ("POST", "/v1/actions", {"kind": "noop", "node_class": "a b"}, f"node_class: {NAME}"),
    ("POST", "/v1/actions", {"kind": "noop", "trajectory": "mine"},
     "trajectory: must be 't' and 16 to 24 hexadecimal digits: the id in the answer that opens a trajectory"),
    ("POST", "/v1/actions", {"kind": "noop", "timeout_s": 0}, "timeout_s: must be greater than 0"),
    ("POST", "/v1/actions", {"kind": "noop", "timeout_s": "5"}, "timeout_s: must be a number, not text"),
    ("POST", "/v1/actions", {"kind": "noop", "units": {"a b": 1}}, f"units: a key {NAME}"),
    ("POST", "/v1/actions", {"kind": "noop", "request_id": ""}, "request_id: must have at least 1 character"),
    (
        "POST",
        "/v1/actions",
        {"kind": "noop", "params": {"ecko": 1}},
        "params of noop: unknown field `ecko`; the fields are `echo`",
    ),
    ("POST", "/v1/actions?wiat=1", {"kind": "noop"}, "unknown query parameter 'wiat'; there is wait"),
    ("POST", "/v1/actions?wait=x", {"kind": "noop"}, "query parameter wait: must be seconds from 0 to 600, not 'x'"),
    ("POST", "/v1/acquire", {}, "missing field `quotas`"),
    ("POST", "/v1/acquire", {"quotas": {}}, 'quotas: name at least one, as {"quotas": {"search": 1}}'),
    ("POST", "/v1/acquire", {"quotas": {"search": 1}, "ttl_s": 0}, "ttl_s: must be at least 1"),
    ("POST", "/v1/leases/abcdefgh/release", {}, "missing field `fence`"),
    ("POST", "/v1/leases/abcdefgh/settle", {"fence": 1, "used": {"a b": 1}}, f"used: a key {NAME}"),
    ("POST", "/v1/leases/abcdefgh/settle", {"fence": 1, "used": {"a": 1, "b": -1}}, "used.b: must be at least 0"),
    ("POST", "/v1/leases/abcdefgh/settle", {"fence": 1, "used": {"a": 2e9}}, "used.a: must be at most 1000000000"),
    ("POST", "/v1/leases/abcdefgh/settle", {"fence": 1, "used": {"a": "3"}}, "used.a: must be a number, not text"),
    ("POST", "/v1/leases/abcdefgh/settle", {"fence": 1, "used": 3}, "used: must be an object, not a whole number"),
    ("POST", "/v1/leases/abcdefgh/settle", {"used": {"a": 1}}, "missing field `fence`"),
    ("POST", "/v1/rewards", {"prams": {}}, f"unknown field `prams`; the fields are {REWARD_FIELDS}"),
    ("POST", "/v1/rewards", {"task": "known", "params": {"kode": ""}},
     "task 'known' has no parameter `kode`; the parameters are `echo`"),
    ("POST", "/v1/rewards", {"task": "known", "stage_params": {"run": {}}},
     "task 'known' has no stage `run`; the stages are `first`"),
    ("POST", "/v1/rewards", {"task": "known", "stage_params": {LONG: {}}},
     f"task 'known' has no stage `{CUT}`; the stages are `first`"),
    ("POST", "/v1/rewards", {"task": "known", "stage_params": {LONG: 1}},
     f"stage_params.{CUT}: must be an object, not a whole number"),
    ("POST", "/v1/rewards", {"task": "known", "params": {"echo": 1}},
     "params of stage 'first' (noop): echo: must be text, not a whole number"),
    ("POST", "/v1/trajectories", {"environment": {"img": "x"}},
     f"environment: unknown field `img`; the fields are {ENVIRONMENT_FIELDS}"),
    ("POST", "/v1/trajectories", {"environment": {"image": "-"}},
     "environment.image: must be letters, digits, '.', '_', '/', ':', '@' and '-', beginning with a letter or a digit"),
    ("POST", "/v1/trajectories", {"environment": {"env": {"1": ""}}},
     "environment.env: a key must be letters, digits and '_', beginning with a letter or '_'"),
    ("PATCH", "{trajectory}", {}, "missing field `priority`"),
    ("PATCH", "{trajectory}", {"priorty": 1}, "unknown field `priorty`; the fields are `priority`"),
    ("PATCH", "{trajectory}", {"priority": "1"}, "priority: must be a number, not text"),
    ("PATCH", "{trajectory}", b'{"priority": NaN}',
     "the body is not JSON: JSON is malformed: invalid character (byte 13)"),
    ("PATCH", "{trajectory}", b'{"priority": 1e999}', "priority: must be a finite number"),
    ("PATCH", "{trajectory}", {"priority": -2e9}, "priority: must be at least -1000000000"),
    ("GET", "/v1/trajectories?state=x", None,
     "query parameter state: must be one of open, closed, expired, lost, not 'x'"),
    ("POST", "{trajectory}/actions", {"kind": "env.read", "params": {"path": "a", "encoding": "x"}},
     "params of env.read: encoding: must be one of base64, utf-8, not 'x'"),
    ("POST", "{trajectory}/actions", {"kind": LONG},
     f"unknown kind '{CUT}'; in a trajectory there are {ENVIRONMENT_KINDS}"),
    ("POST", "{trajectory}/actions", {"kind": "env.bash", "params": {"line": "", "session": "a b"}},
     "params of env.bash: session: must be letters, digits, '.', '_' and '-'"),
    ("POST", "{trajectory}/swerex/run_in_session", {"action_type": "zsh"},
     "action_type: must be one of bash, bash_interrupt, not 'zsh'"),
    ("POST", "/run_code", {"code": "", "run_timeout": 0}, "run_timeout: must be greater than 0"),
    # by pydantic, behind FastAPI
    ("PUT", TASK, {"stages": [{"name": "a", "kind": "noop", "timeout": 3}]},
     f"stages[0]: unknown field `timeout`; the fields are {STAGE_FIELDS}"),
    ("PUT", TASK, {"stages": [{"name": "a", "kind": "noop", "params": {"ecko": 1}}]},
     "stages[0]: params of noop: unknown field `ecko`; the fields are `echo`"),
    ("PUT", TASK, {"stages": [{"name": "a", "kind": "dance"}]}, f"stages[0]: unknown kind 'dance'; there are {KINDS}"),
    ("PUT", TASK, {"stages": [{"name": "a", "kind": LONG}]}, f"stages[0]: unknown kind '{CUT}'; there are {KINDS}"),
    ("PUT", TASK, {"stages": [{"kind": "noop"}]}, "stages[0]: missing field `name`"),
    ("PUT", TASK, {"stages": [{"name": "a b", "kind": "noop"}]}, f"stages[0].name: {NAME}"),
    ("PUT", TASK, {"stages": [{"name": "a", "kind": "noop", "timeout_s": 3601}]},
     "stages[0].timeout_s: must be at most 3600"),
    ("PUT", TASK, {"stages": [{"name": "a", "kind": "noop", "timeout_s": "5"}]},
     "stages[0].timeout_s: must be a number, not text"),
    ("PUT", TASK, {"stages": [{"name": "a", "kind": "noop", "units": {"slots": "1"}}]},
     'stages[0].units.slots: must be a number of units, [fewest, most], or {"any_of": [amounts]}'),
    ("PUT", TASK, {"stages": [{"name": "a", "kind": "noop", "units": {"slots": [1]}}]},
     "stages[0].units.slots: must have at least 2 items"),
    ("PUT", TASK, {"stages": [{"name": "a", "kind": "noop", "units": {"a b": 1}}]}, f"stages[0].units: a key {NAME}"),
    ("PUT", TASK, {"stages": [{"name": "a", "kind": "noop", "elasticity": {"model": "guess"}}]},
     f"stages[0].elasticity: must be a table like {ELASTICITIES}"),
    ("PUT", TASK, {"stages": []}, "stages: must have at least 1 item"),
    ("PUT", TASK, [], "the body must be an object, not a list"),
    ("PUT", TASK, b"", "the body is empty: send JSON"),
    ("PUT", TASK, b"{", "the body is not JSON: Expecting property name enclosed in double quotes at 1"),
    ("PUT", "/v1/tasks/a%20b", {"stages": []}, f"task in the path: {NAME}"),
    ("GET", "/v1/tasks?all=1", None, "unknown query parameter 'all'; there is none"),
    ("POST", f"{TASK}/batches", {"sice": 1}, "unknown field `sice`; the fields are `size`, `key`, `images`"),
    ("POST", f"{TASK}/batches", {"size": 0}, "size: must be greater than 0"),
    ("POST", "/v1/batches/b/progress", {"generating": 1, "length": []},
     "unknown field `length`; the fields are `generating`, `lengths`"),
    ("GET", "/v1/batches/a%20b", None, "batch in the path: must be 1 to 64 letters, digits, '_' and '-'"),
    ("GET", "/v1/batches/b/results?after=x", None,
     "query parameter after: must be the `cursor` of a line of results, for example 1764000000000-0, or empty"),
    ("GET", "/v1/plans?limit=0", None, "query parameter limit: must be at least 1"),
    ("GET", "/v1/plans?limit=x", None, "query parameter limit: must be a whole number, not text"),
]  # fmt: skip


@pytest.fixture
async def http(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[aiohttp.ClientSession]:
    """The whole proxy, with the task `known`."""
    monkeypatch.setenv("TREADLE_REDIS_URL", redis_url)
    async with serving(create_app(load(ProxySettings))) as url, aiohttp.ClientSession(url) as http:
        task = {"stages": [{"name": "first", "kind": "noop"}]}
        assert (await reply(http, "PUT", TASK, task))[0] == 200
        yield http


async def reply(http: aiohttp.ClientSession, method: str, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    given: dict[str, Any] = {"data": body} if isinstance(body, bytes) else {"json": body}
    async with http.request(method, path, headers=headers, **given) as response:
        return response.status, await response.json(content_type=None)


async def open_trajectory(http: aiohttp.ClientSession) -> str:
    _, view = await reply(http, "POST", "/v1/trajectories", {})
    return f"/v1/trajectories/{view['id']}"


async def test_an_error_names_the_field_and_what_to_write(http: aiohttp.ClientSession) -> None:
    trajectory = await open_trajectory(http)
    problems = [await reply(http, method, path.format(trajectory=trajectory), body) for method, path, body, _ in CASES]
    details = [(status, problem["detail"]) for status, problem in problems]
    assert details == [(422, message) for *_, message in CASES]


async def test_an_error_shows_the_beginning_of_a_long_language_or_name(http: aiohttp.ClientSession) -> None:
    _, problem = await reply(http, "POST", "/run_code", {"code": "", "language": LONG})
    assert problem["detail"].startswith(f"unknown language '{CUT}'; there are bash, c, ")
    for body, kind in (({"task": LONG}, "task"), ({"batch": LONG}, "batch")):
        status, problem = await reply(http, "POST", "/v1/rewards", body)
        assert (status, problem["name"]) == (404, CUT)
        assert problem["detail"].startswith(f"no {kind} '{CUT}'; ")
        assert len(problem["detail"]) < 250


@pytest.mark.parametrize(("method", "path"), [("PUT", TASK), ("GET", "/v1/tasks"), ("POST", "/v1/actions")])
async def test_a_tenant_is_a_name_on_every_route(http: aiohttp.ClientSession, method: str, path: str) -> None:
    body = {"kind": "noop"} if path == "/v1/actions" else {"stages": [{"name": "a", "kind": "noop"}]}
    status, problem = await reply(http, method, path, body, **{"Treadle-Tenant": "a b"})
    assert (status, problem["detail"]) == (422, f"header treadle-tenant: {NAME}")


async def with_type(http: aiohttp.ClientSession, method: str, path: str, content_type: str) -> tuple[int, str]:
    """Send a list as the body. The reply depends on the route alone."""
    headers = {"content-type": content_type} if content_type else {}
    skip = () if content_type else ("content-type",)
    async with http.request(method, path, data=b"[]", headers=headers, skip_auto_headers=skip) as response:
        return response.status, await response.text()


async def test_no_route_depends_on_the_content_type_of_json(http: aiohttp.ClientSession) -> None:
    async with http.get("/openapi.json") as response:
        paths = (await response.json())["paths"]
    trajectory = (await open_trajectory(http)).rpartition("/")[2]
    known = {"task": "known", "batch": "b", "tenant": "default", "trajectory": trajectory, "id": "unknown"}
    known |= {"quota": "search", "service": "judge-a"}
    taking = [
        (method.upper(), path.format(**known))
        for path, operations in paths.items()
        for method, operation in operations.items()
        if "multipart/form-data"
        not in operation.get("requestBody", {"content": {"multipart/form-data": {}}})["content"]
    ]
    assert len(taking) > 14
    for method, path in taking:
        expected = await with_type(http, method, path, "application/json")
        assert expected[0] == (200 if path == "/v1/rewards/bulk" else 422), (path, expected)
        for content_type in (
            "",
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/json; charset=latin-1",
        ):
            assert await with_type(http, method, path, content_type) == expected, (path, content_type)
