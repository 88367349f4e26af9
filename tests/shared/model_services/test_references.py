"""Declarations over REST: what a reference may change, and what nobody may bring without the operator's permission."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.gpu_manager.backends.launching import EngineLaunch
from shared.model_services.entries import MemoryNeed, ServiceEntry, read_entries
from shared.model_services.references import Declaration, ServiceReference, read_declaration, referred
from shared.model_services.shown import shown
from shared.runtime.errors import BadRequest, Forbidden
from tests.shared.model_services.test_entries import COMMAND, JUDGE, entry

ENV = {"HF_TOKEN": "secret-1", "VLLM_SERVER_DEV_MODE": "1"}
CHAT = {"prompt": "2+2=", "expect": "4", "path": "/v1/chat/completions", "body": {"max_tokens": 256}}
FILE = read_entries(
    msgspec.json.encode(
        {
            "judge-a": entry(env=ENV, canary=CHAT),
            "wide": entry(command={"1": ["one", "{port}"], "2": ["two", "{port}"], "4": ["four", "{port}"]},
                          degrees=[1, 2, 4]),
            "given": entry(backend="vllm", command=None, url={"1": "http://127.0.0.1:8001", "2": "http://127.0.0.1:2"},
                           first_gpu={"1": 0, "2": 2}, degrees=[1, 2]),
            "torch": entry(backend="torch", api="treadle", command=None, canary=None),
        }
    )
)  # fmt: skip


def apply(name: str, body: Any) -> ServiceEntry:
    """The entry that a manager uses after a PUT without permission for commands."""
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    declaration = read_declaration(raw, allow_commands=False)
    stored = msgspec.json.decode(msgspec.json.encode(declaration), type=Declaration)
    assert stored.whole is None
    assert stored.reference is not None
    found = FILE.get(stored.reference.entry)
    if found is None:
        raise BadRequest(what="entry: unknown")
    try:
        return referred(name, stored.reference, found)
    except ValueError as error:
        raise BadRequest(what=str(error)) from error


ATTACKS: list[Any] = [
    # whole entries, also incomplete ones and those that hide `entry`
    JUDGE,
    {},
    {"command": COMMAND},
    {"url": "http://169.254.169.254/latest/meta-data/"},
    {**JUDGE, "Entry": "judge-a"},
    {**JUDGE, " entry": "judge-a"},
    {"backend": "torch", "model": "/etc", "memory_gb": {"awake": 1}},
    # fields of a whole entry beside `entry`
    {"entry": "judge-a", "command": ["sh", "-c", "id > /tmp/x", "{port}"]},
    {"entry": "judge-a", "command": {"1": ["sh", "{port}"]}},
    {"entry": "judge-a", "url": "http://169.254.169.254/"},
    {"entry": "judge-a", "first_gpu": 0},
    {"entry": "judge-a", "env": {"LD_PRELOAD": "/tmp/x.so"}},
    {"entry": "judge-a", "env": {}},
    {"entry": "judge-a", "model": "/etc/passwd"},
    {"entry": "judge-a", "model": "x --trust-remote-code"},
    {"entry": "judge-a", "backend": "torch"},
    {"entry": "judge-a", "api": "treadle"},
    {"entry": "judge-a", "health": "/collective_rpc"},
    {"entry": "judge-a", "memory_gb": {"awake": 0.001}},
    {"entry": "judge-a", "start_s": 1},
    {"entry": "judge-a", "__class__": "x"},
    {"entry": "judge-a", "reference": {"entry": "judge-a"}},
    {"entry": "judge-a", "whole": JUDGE},
    {**JUDGE, "entry": "judge-a"},
    # the path and the body of a canary reach an engine: /collective_rpc executes code in vLLM's development mode
    {"entry": "judge-a", "canary": {"prompt": "x", "expect": "y", "path": "/collective_rpc"}},
    {"entry": "judge-a", "canary": {"path": "/sleep?level=2", "body": {}, "pointer": "", "expect": 1}},
    {"entry": "judge-a", "canary": {"prompt": "x", "expect": "y", "path": "@attacker.example/"}},
    {"entry": "judge-a", "canary": {"prompt": "x", "expect": "y", "body": {"model": "/etc/passwd"}}},
    {"entry": "judge-a", "canary": {"prompt": "x", "expect": "y", "pointer": "/a"}},
    {"entry": "judge-a", "canary": {"prompt": "x", "expect": "y", "tolerance": 1e9}},
    {"entry": "judge-a", "canary": {"prompt": "", "expect": "y"}},
    {"entry": "judge-a", "canary": {"prompt": "x", "expect": ""}},
    {"entry": "judge-a", "canary": {"prompt": "x", "expect": 4}},
    {"entry": "judge-a", "canary": {"prompt": "x" * 65_537, "expect": "y"}},
    {"entry": "judge-a", "canary": "2+2="},
    {"entry": "torch", "canary": {"prompt": "x", "expect": "y"}},
    # names
    {"entry": "../judge-a"},
    {"entry": "judge-a\n"},
    {"entry": "judge-a\x00"},
    {"entry": "{port}"},
    {"entry": ""},
    {"entry": None},
    {"entry": ["judge-a"]},
    {"entry": {"entry": "judge-a"}},
    {"entry": "unknown"},
    {"entry": "x" * 65},
    # numbers
    {"entry": "judge-a", "concurrency": 0},
    {"entry": "judge-a", "concurrency": 4097},
    {"entry": "judge-a", "concurrency": "8"},
    {"entry": "judge-a", "concurrency": True},
    {"entry": "judge-a", "priority": 1001},
    {"entry": "judge-a", "priority": 0.5},
    {"entry": "judge-a", "min_residency_s": -1},
    {"entry": "judge-a", "min_residency_s": 86_401},
    b'{"entry": "judge-a", "min_residency_s": 1e999}',
    b'{"entry": "judge-a", "min_residency_s": NaN}',
    # degrees
    {"entry": "judge-a", "degrees": [2]},
    {"entry": "judge-a", "degrees": [1, 1]},
    {"entry": "judge-a", "degrees": []},
    {"entry": "judge-a", "degrees": [0]},
    {"entry": "judge-a", "degrees": ["1"]},
    {"entry": "wide", "degrees": [1, 2, 4, 8]},
    # no object, no JSON
    [],
    "judge-a",
    None,
    b"",
    b"{",
    b"\xff\xfe",
    b'{"entry": "judge-a"} {"command": ["x"]}',
    b'{"entry": "judge-a", "entry": ["x"]}',
    b"[" * 100_000,
]
"""Bodies that must be rejected without GPU_MANAGER_ALLOW_COMMANDS, under the name judge-a."""


@pytest.mark.parametrize("body", ATTACKS, ids=range(len(ATTACKS)))
def test_a_body_is_rejected_without_permission_for_commands(body: Any) -> None:
    with pytest.raises((BadRequest, Forbidden)) as error:
        apply("judge-a", body)
    assert str(error.value)


def test_a_whole_entry_says_what_to_set() -> None:
    with pytest.raises(Forbidden, match="GPU_MANAGER_ALLOW_COMMANDS=true"):
        apply("judge-a", JUDGE)


@pytest.mark.parametrize("name", ["judge-a", "other", "--port", "{model}", "a;id"])
def test_nothing_of_a_reference_reaches_its_process(name: str) -> None:
    marked = {
        "entry": "judge-a", "concurrency": 4001, "priority": 999, "min_residency_s": 54_321,
        "canary": {"prompt": "{port} MARK", "expect": "MARK"}, "degrees": [1],
    }  # fmt: skip
    found = apply(name, marked)
    launches = [EngineLaunch(tuple(one.command_of(1) or ()), one.model, (0,), one.env)
                for one in (FILE["judge-a"], found)]  # fmt: skip
    assert launches[0].argv(1) == launches[1].argv(1)
    assert launches[0].environment(1) == launches[1].environment(1)
    changed = {"concurrency", "priority", "min_residency_s", "canary"}
    fields = msgspec.structs.asdict(found)
    assert {field for field, value in fields.items() if value != getattr(FILE["judge-a"], field)} == changed
    assert found.canary is not None
    assert (found.canary.prompt, found.canary.expect) == ("{port} MARK", "MARK")
    assert (found.canary.path, found.canary.body) == (CHAT["path"], CHAT["body"])


def test_a_subset_of_degrees_keeps_their_commands_and_addresses() -> None:
    found = apply("wide", {"entry": "wide", "degrees": [4, 1]})
    assert found.command == {4: ["four", "{port}"], 1: ["one", "{port}"]}
    given = apply("given", {"entry": "given", "degrees": [2]})
    assert (given.url, given.first_gpu, given.url_of(1)) == ({2: "http://127.0.0.1:2"}, {2: 2}, "")


def test_a_subset_of_degrees_keeps_their_memory() -> None:
    memory = {"awake": {"1": 60, "2": 32}, "asleep": 2, "host": {"1": 40, "2": 41}}
    file = read_entries(msgspec.json.encode({"split": entry(degrees=[1, 2], memory_gb=memory)}))["split"]
    found = referred("second", ServiceReference(entry="split", degrees=[2]), file)
    assert found.memory_gb == MemoryNeed(awake={2: 32}, asleep=2, host={2: 41})
    assert found.awake_gb_by == {2: 32}


def test_memory_is_shown_by_degree_where_it_was_declared_so() -> None:
    memory = {"awake": {"1": 60, "2": 32}, "asleep": {"1": 1, "2": 3}}
    split = read_entries(msgspec.json.encode({"split": entry(degrees=[2, 1], memory_gb=memory)}))["split"]
    found = shown(split, with_commands=False)
    assert found.memory_gb == {"awake": 60, "asleep": 3}
    assert found.memory_gb_by_degree == {"1": {"awake": 60, "asleep": 1}, "2": {"awake": 32, "asleep": 3}}
    one = read_entries(msgspec.json.encode({"a": entry(degrees=[1, 2], memory_gb={"awake": 16, "host": 4})}))["a"]
    found = shown(one, with_commands=False)
    assert (found.memory_gb, found.memory_gb_by_degree) == ({"awake": 16, "asleep": 0, "host": 4}, {})


def test_one_running_engine_has_one_service() -> None:
    assert apply("given", {"entry": "given", "priority": 1}).priority == 1
    with pytest.raises(BadRequest, match="runs already, and only one service can use it; name the service given"):
        apply("other", {"entry": "given"})


def test_a_whole_entry_with_permission_has_the_checks_of_the_file() -> None:
    found = read_declaration(msgspec.json.encode(JUDGE), allow_commands=True)
    assert (found.whole, found.reference) == (read_entries(msgspec.json.encode({"x": JUDGE}))["x"], None)
    for changes, message in (
        ({"command": ["a", "{gpu}", "{port}"]}, r"command: the place \{gpu\} is unknown"),
        ({"memory_gb": None}, 'missing field `memory_gb`; write "memory_gb"'),
        ({"tokens": 1}, "unknown field `tokens`"),
    ):
        with pytest.raises(BadRequest, match=message):
            read_declaration(msgspec.json.encode(entry(**changes)), allow_commands=True)


def test_values_of_the_environment_are_never_shown_and_commands_only_with_permission() -> None:
    found = shown(FILE["judge-a"], with_commands=False)
    text = msgspec.json.encode(found).decode()
    assert (found.env, found.command, found.url) == (sorted(ENV), {}, {})
    assert "secret-1" not in text
    assert "server.py" not in text
    assert found.canary == CHAT | {"tolerance": 1e-3}
    allowed = shown(FILE["judge-a"], with_commands=True)
    assert allowed.command == {"1": COMMAND}
    assert "secret-1" not in msgspec.json.encode(allowed).decode()
    assert shown(FILE["given"], with_commands=False).url == {}
    assert shown(FILE["given"], with_commands=True).url["2"] == "http://127.0.0.1:2"
