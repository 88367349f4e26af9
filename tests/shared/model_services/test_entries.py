"""Entries of model services: what they may say, and what an error says to write."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.model_services.entries import MOST_SERVICES, ServiceEntry, read_entries, read_file
from shared.runtime.patterns import is_name

COMMAND = ["python3", "server.py", "--port", "{port}", "--model", "{model}"]
JUDGE: dict[str, Any] = {
    "backend": "process",
    "api": "openai",
    "model": "judge-a",
    "command": COMMAND,
    "health": "/health",
    "degrees": [1],
    "memory_gb": {"awake": 16, "asleep": 0},
    "concurrency": 1,
    "canary": {"prompt": "2+2=", "expect": "4"},
    "priority": 0,
    "min_residency_s": 5,
}
"""The entry of issue 16."""


def entry(**changes: Any) -> dict[str, Any]:
    """The entry with changes; None removes a field."""
    return {name: value for name, value in {**JUDGE, **changes}.items() if value is not None}


def read(**changes: Any) -> ServiceEntry:
    return read_entries(msgspec.json.encode({"judge-a": entry(**changes)}))["judge-a"]


def test_the_entry_of_the_documentation() -> None:
    found = read()
    assert (found.backend, found.api, found.model, found.degrees, found.concurrency) == (
        "process", "openai", "judge-a", [1], 1,
    )  # fmt: skip
    assert (found.command_of(1), found.url_of(1)) == (COMMAND, "")
    assert (found.canary.prompt, found.canary.expect) == ("2+2=", "4") if found.canary else False


def test_what_may_be_left_out() -> None:
    found = read_entries(
        b'{"rm": {"backend": "torch", "api": "treadle", "model": "/models/rm", "memory_gb": {"awake": 2}}}'
    )["rm"]
    assert (found.command_of(1), found.url_of(1), found.canary, found.health) == (None, "", None, "/health")
    assert (found.degrees, found.concurrency, found.priority, found.min_residency_s) == ([1], 1, 0, 5.0)


def test_commands_and_addresses_per_degree() -> None:
    one, two = ["a", "{port}"], ["b", "{port}", "--tp", "{degree}", "{devices}", '{"x": 1}']
    found = read(command={"1": one, "2": two}, degrees=[2, 1])
    assert (found.command_of(1), found.command_of(2), found.command_of(4)) == (one, two, None)

    urls = {"1": "http://127.0.0.1:8001/", "4": "https://a.example/v"}
    given = read(backend="vllm", command=None, url=urls, degrees=[1, 4], first_gpu={"1": 3, "4": 4})
    assert (given.first_gpu_of(1), given.first_gpu_of(4)) == (3, 4)
    assert (given.url_of(1), given.url_of(4), given.url_of(2)) == ("http://127.0.0.1:8001", "https://a.example/v", "")
    assert read(backend="vllm", command=None, url="http://[::1]:8001", first_gpu=0).url_of(1) == "http://[::1]:8001"


def test_one_command_may_serve_all_degrees() -> None:
    found = read(degrees=[1, 2, 4, 8])
    assert {degree: found.command_of(degree) for degree in (1, 2, 4, 8)} == dict.fromkeys((1, 2, 4, 8), COMMAND)


def test_host_memory_of_a_sleeping_engine() -> None:
    assert read(memory_gb={"awake": 16}).host_gb(2) == 32
    assert read(memory_gb={"awake": 16, "host": 3}).host_gb(2) == 3


def test_memory_may_differ_by_degree() -> None:
    memory = {
        "awake": {"1": 60, "2": 32, "4": 17.5},
        "asleep": {"1": 2, "2": 1, "4": 0},
        "host": {"1": 9, "2": 8, "4": 7},
    }
    found = read(memory_gb=memory, degrees=[4, 1, 2])
    assert found.awake_gb_by == {1: 60, 2: 32, 4: 17.5}
    assert [found.asleep_gb(degree) for degree in (1, 2, 4)] == [2, 1, 0]
    assert [found.host_gb(degree) for degree in (1, 2, 4)] == [9, 8, 7]
    some = read(memory_gb={"awake": {"1": 60, "2": 32}, "asleep": 3}, degrees=[1, 2])
    assert [(some.asleep_gb(degree), some.host_gb(degree)) for degree in (1, 2)] == [(3, 60), (3, 64)]
    assert read(memory_gb={"awake": 16, "asleep": 2}, degrees=[1, 2]).awake_gb_by == {1: 16, 2: 16}


ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"backend": None}, 'missing field `backend`; write "backend": "process"; there are process, vllm, sglang and'),
    ({"backend": "tgi"}, "backend: must be one of process, sglang, torch, vllm, not 'tgi'"),
    ({"api": "grpc"}, "api: must be one of openai, treadle, not 'grpc'"),
    ({"model": None}, 'missing field `model`; write "model": "judge-a", the name of the model in calls'),
    ({"model": ""}, "model: must have at least 1 character"),
    ({"modle": "a"}, "unknown field `modle`; the fields are `backend`, `api`, `model`, "),
    ({"command": None}, 'it has no engine; write "command": ["python3", "server.py", "--port", "{port}"], or "url": '),
    ({"url": "http://127.0.0.1:8001"}, "it has `command` and `url`; write `command` for an engine that this node"),
    ({"command": []}, "command: must have at least 1 item"),
    ({"command": ["", "{port}"]}, "command: its first part is the program, and must not be empty"),
    ({"command": "python3 server.py"}, "command: must be "),
    ({"command": ["a", 1]}, "command[1]: must be text, not a whole number"),
    ({"command": ["a\x00", "{port}"]}, "command[0]: must be text without NUL"),
    ({"command": ["python3", "server.py"]},
     'command: no part has {port}, the port at which the engine listens; write "--port", "{port}"'),
    ({"command": ["a", "{port}", "--gpu", "{gpu}"]},
     "command: the place {gpu} is unknown; there are {port}, {devices}, {degree}, {model}"),
    ({"command": {"1": COMMAND}, "degrees": [1, 2]},
     'command: degree 2 has none; add "2": ... or remove it from `degrees`'),
    ({"command": {"1": COMMAND, "4": COMMAND}}, "command: 4 is not in `degrees`, [1]; add it there, or remove it"),
    ({"command": {"one": COMMAND}}, "command: a key must be a whole number, not text"),
    ({"command": {}}, 'command: degree 1 has none; add "1": ... or remove it from `degrees`'),
    ({"command": {"1": ["a"]}}, "command: no part has {port}"),
    ({"command": {"1": COMMAND, "2": ["a", "{ports}"]}, "degrees": [1, 2]}, "command: the place {ports} is unknown"),
    ({"command": None, "url": "http://127.0.0.1:8001", "degrees": [1, 2]},
     'url: one engine has one degree; write an address for each of [1, 2]: {"1": "http://127.0.0.1:8001"}'),
    ({"command": None, "url": {"1": "http://127.0.0.1:8001"}, "degrees": [1, 2]}, "url: degree 2 has none; add"),
    ({"command": None, "backend": "vllm", "url": "http://127.0.0.1:8001"},
     'first_gpu: an engine that runs already has its GPUs; write "first_gpu": 0'),
    ({"command": None, "backend": "vllm", "url": "http://127.0.0.1:8001", "first_gpu": 3, "degrees": [2]},
     "first_gpu: 3 is no multiple of 2"),
    ({"first_gpu": 0}, "first_gpu: it belongs to `url`"),
    ({"command": None, "url": "http://127.0.0.1:8001", "first_gpu": 0}, 'url: the backend "process" evicts an engine'),
    ({"command": None, "url": "127.0.0.1:8001"},
     "url: it is no base address; write one as http://127.0.0.1:8001"),
    ({"command": None, "url": "ftp://127.0.0.1"}, "url: it is no base address"),
    ({"command": None, "url": "http://:8001"}, "url: it is no base address"),
    ({"command": None, "url": "http://a:99999"}, "url: it is no base address"),
    ({"command": None, "url": "http://a/b?c=d"}, "url: it is no base address"),
    ({"command": None, "url": "http://u:p@a/b"}, "url: it is no base address"),
    ({"command": None, "url": "http://a b/"}, "url: it is no base address"),
    ({"command": None, "backend": "vllm", "url": "http://a\\b:8001", "first_gpu": 0}, "url: it is no base address"),
    ({"command": None, "backend": "vllm", "url": "http://a/\x7f", "first_gpu": 0}, "url: it is no base address"),
    ({"command": None, "backend": "vllm", "url": "http://a\r\nb", "first_gpu": 0}, "url: it is no base address"),
    ({"command": None, "backend": "vllm", "url": "http://a..b", "first_gpu": 0}, "url: it is no base address"),
    ({"command": None, "backend": "vllm", "url": "http://\u00e9", "first_gpu": 0}, "url: it is no base address"),
    ({"health": "health"}, "health: must be a path, beginning with '/'"),
    ({"health": "/a b"}, "health: '/a b' should begin with \"/\" and have no spaces or control characters"),
    ({"health": "/a\r\nb"}, "health: '/a\\r\\nb' should begin with \"/\" and have no spaces or control characters"),
    ({"degrees": []}, "degrees: must have at least 1 item"),
    ({"degrees": [3]}, "degrees: [3] should be different numbers out of 1, 2, 4 and 8"),
    ({"degrees": [1, 1]}, "degrees: [1, 1] should be different numbers out of 1, 2, 4 and 8"),
    ({"degrees": 1}, "degrees: must be a list, not a whole number"),
    ({"memory_gb": None},
     'missing field `memory_gb`; write "memory_gb": {"awake": 16, "asleep": 0}, in GB of each GPU'),
    ({"memory_gb": 16}, "memory_gb: must be an object, not a whole number"),
    ({"memory_gb": {"asleep": 1}}, 'memory_gb: missing field `awake`; write "memory_gb": {"awake": 16}, in GB of each'),
    ({"memory_gb": {"awake": 0}}, "memory_gb.awake: must be greater than 0"),
    ({"memory_gb": {"awake": 4, "asleep": 4}}, "memory_gb: `asleep` should be less than `awake`"),
    ({"memory_gb": {"awake": 4, "asleep": -1}}, "memory_gb.asleep: must be at least 0"),
    ({"memory_gb": {"awake": "16"}}, "memory_gb.awake: must be a number or an object, not text"),
    ({"memory_gb": {"awake": {"1": 60}}, "degrees": [1, 2]},
     'memory_gb.awake: degree 2 has none; add "2": ... or remove it from `degrees`'),
    ({"memory_gb": {"awake": {}}}, 'memory_gb.awake: degree 1 has none; add "1": ... or remove it from `degrees`'),
    ({"memory_gb": {"awake": {"1": 60, "4": 17}}},
     "memory_gb.awake: 4 is not in `degrees`, [1]; add it there, or remove it"),
    ({"memory_gb": {"awake": 60, "asleep": {"2": 1}}, "degrees": [1, 2]}, "memory_gb.asleep: degree 1 has none; add"),
    ({"memory_gb": {"awake": 60, "host": {"1": 1, "8": 1}}}, "memory_gb.host: 8 is not in `degrees`, [1]; add it"),
    ({"memory_gb": {"awake": {"one": 60}}}, "memory_gb.awake: a key must be a whole number, not text"),
    ({"memory_gb": {"awake": {"1": 0}}}, "memory_gb.awake[...]: must be greater than 0"),
    ({"memory_gb": {"awake": {"1": "much"}}}, "memory_gb.awake[...]: must be a number, not text"),
    ({"memory_gb": {"awake": {"1": 60, "2": 3}, "asleep": 3}, "degrees": [1, 2]},
     "memory_gb: `asleep` should be less than `awake` at degree 2: it is what a sleeping engine keeps"),
    ({"memory_gb": {"awake": 4, "disk": 1}},
     "memory_gb: unknown field `disk`; the fields are `awake`, `asleep`, `host`"),
    ({"concurrency": 0}, "concurrency: must be at least 1"),
    ({"concurrency": 1.5}, "concurrency: must be a whole number, not a number"),
    ({"canary": {"expect": "4"}}, "canary: a canary needs `prompt` and `expect`, or `path`"),
    ({"canary": {"prompt": "2+2="}}, "canary: a canary with `prompt` needs a text as `expect`, such as '4'"),
    ({"canary": {"prompt": "2+2=", "expect": 4}},
     "canary: a canary with `prompt` needs a text as `expect`, such as '4'"),
    ({"canary": {"promt": "2+2="}}, "canary: unknown field `promt`"),
    ({"canary": {"prompt": "2", "expect": "4", "path": "v1/chat/completions"}},
     "canary.path: 'v1/chat/completions' should begin with \"/\" and have no spaces or control characters; write"),
    ({"canary": {"prompt": "2", "expect": "4", "path": "/v1 x"}}, "canary.path: '/v1 x' should begin with \"/\""),
    ({"canary": {"path": "/v1\r\nx: y", "pointer": "", "expect": 1}}, "canary.path: '/v1\\r\\nx: y' should begin with"),
    ({"canary": {"path": "/v1\x00", "pointer": "", "expect": 1}}, "canary.path: '/v1\\x00' should begin with \"/\""),
    ({"canary": {"path": "/v1", "pointer": "scores/0", "expect": 1}},
     'canary.pointer: it should be empty or begin with "/", as "/scores/0"'),
    ({"api": "treadle"}, 'canary: the API treadle completes no prompt; write {"path": "/v1/score"'),
    ({"backend": "torch", "canary": None},
     'api: engines of the backend \'torch\' have another one; write "api": "treadle"'),
    ({"backend": "vllm", "api": "treadle", "canary": None},
     'api: engines of the backend \'vllm\' have another one; write "api": "openai"'),
    ({"priority": "high"}, "priority: must be a whole number, not text"),
    ({"min_residency_s": -1}, "min_residency_s: must be at least 0"),
    ({"start_s": 0}, "start_s: must be greater than 0"),
    ({"load_s": 0}, "load_s: must be greater than 0"),
    ({"env": {"A B": "c"}}, "env: a key must be letters, digits and '_', beginning with a letter or '_'"),
    ({"env": {"A": "{b}"}}, "env: the place {b} is unknown; there are {port}, {devices}, {degree}, {model}"),
    ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "env: remove CUDA_VISIBLE_DEVICES; the chunk decides it"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), ERRORS, ids=range(len(ERRORS)))
def test_a_wrong_entry_is_named_and_its_error_says_what_to_write(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the table has the messages
        read(**changes)
    assert str(error.value).startswith(f"entry 'judge-a': {message}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", 'it is no JSON object of entries, {"judge-a": {"backend": ...}}'),
        (b"{", "it is no JSON object of entries"),
        (b"\xff", "it is no JSON object of entries"),
        (b'{"a/b": {}}', "entry 'a_b': its name, 'a/b', should be 1 to 64 letters, digits, '.', '_' and '-', begin"),
        (b'{"' + b"x" * 65 + b'": {}}', f"entry '{'x' * 64}': its name, '{'x' * 64}', should be 1 to 64"),
        (b'{"a": 1}', "entry 'a': must be an object, not a whole number"),
        (b'{"a": ' + b"[" * 100_000, "it is no JSON object of entries"),
    ],
)
def test_a_file_that_is_no_object_of_entries(content: bytes, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  # as above
        read_entries(content)
    assert str(error.value).startswith(message)


def test_a_wrong_entry_of_a_file_stops_no_other() -> None:
    wrong = {"judge-b": entry(backend="tgi"), "judge-c": 1, "judge-d": entry(command=None)}
    found = read_file(msgspec.json.encode({"judge-a": JUDGE, **wrong, "last": entry(priority=2)}))
    assert {name: each.priority for name, each in found.entries.items()} == {"judge-a": 0, "last": 2}
    assert found.problems.keys() == wrong.keys()
    assert found.problems["judge-b"] == "backend: must be one of process, sglang, torch, vllm, not 'tgi'"
    assert found.problems["judge-d"].startswith('it has no engine; write "command": ["python3", ')


def test_a_wrong_name_has_its_problem_under_a_name_that_a_service_can_have() -> None:
    names = ("a/b", "a b", "a_b", "", "-", "x" * 65, "x" * 66)
    found = read_file(msgspec.json.encode(dict.fromkeys(names, JUDGE)))
    assert list(found.entries) == ["a_b"]
    long = "x" * 56
    assert list(found.problems) == ["a_b-2", "a_b-3", "unnamed", "unnamed-2", "x" * 64, f"{long}-2"]
    assert all(is_name(name) for name in found.problems)
    assert found.problems["a_b-2"].startswith("its name, 'a/b', should be 1 to 64 letters")


def test_a_problem_is_short_and_has_no_password() -> None:
    address = "http://user:secret@host:1/"
    found = read_file(msgspec.json.encode({"a": entry(backend="vllm", command=None, url=address, first_gpu=0),
                                           "b": entry(**{"x" * 5000: 1})}))  # fmt: skip
    assert "secret" not in found.problems["a"]
    assert len(found.problems["b"]) <= 512


def test_the_number_of_entries_is_bounded() -> None:
    many = {f"s{number}": JUDGE for number in range(MOST_SERVICES + 1)}
    with pytest.raises(ValueError, match="it has 257 entries; the most are 256"):
        read_entries(msgspec.json.encode(many))
    assert len(read_entries(msgspec.json.encode(dict(list(many.items())[1:])))) == MOST_SERVICES


@pytest.mark.parametrize(
    ("backend", "declared", "kept"),
    [
        ("process", False, False),
        ("process", True, True),
        ("vllm", False, True),
        ("sglang", False, True),
        ("torch", False, True),
    ],
)
def test_connections_are_kept_to_servers_that_bear_it(backend: str, declared: bool, kept: bool) -> None:
    api = "treadle" if backend == "torch" else "openai"
    entry = {"backend": backend, "api": api, "model": "m", "command": ["x"], "memory_gb": {"awake": 1}}
    read = msgspec.convert({**entry, "keep_connections": declared}, ServiceEntry)
    assert read.keeps_connections is kept
