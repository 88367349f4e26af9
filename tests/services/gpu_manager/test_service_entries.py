"""The operator's file of model services: what it may say, and what an error says to write. REST names its entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.gpu_manager.service_entries import (
    MOST_SERVICES,
    ServiceEntry,
    WrongEntries,
    load_entries,
    read_entries,
    requested_entry,
)
from shared.runtime.errors import BadRequest

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
     "url: '127.0.0.1:8001' is no base address; write one as http://127.0.0.1:8001"),
    ({"command": None, "url": "ftp://127.0.0.1"}, "url: 'ftp://127.0.0.1' is no base address"),
    ({"command": None, "url": "http://:8001"}, "url: 'http://:8001' is no base address"),
    ({"command": None, "url": "http://a:99999"}, "url: 'http://a:99999' is no base address"),
    ({"command": None, "url": "http://a/b?c=d"}, "url: 'http://a/b?c=d' is no base address"),
    ({"command": None, "url": "http://u:p@a/b"}, "url: 'http://u:p@a/b' is no base address"),
    ({"command": None, "url": "http://a b/"}, "url: 'http://a b' is no base address"),
    ({"health": "health"}, "health: must be text that matches ^/"),
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
    ({"memory_gb": {"awake": 4, "disk": 1}},
     "memory_gb: unknown field `disk`; the fields are `awake`, `asleep`, `host`"),
    ({"concurrency": 0}, "concurrency: must be at least 1"),
    ({"concurrency": 1.5}, "concurrency: must be a whole number, not a number"),
    ({"canary": {"expect": "4"}}, "canary: a canary needs `prompt` and `expect`, or `path`"),
    ({"canary": {"prompt": "2+2="}}, "canary: a canary with `prompt` needs a text as `expect`, such as '4'"),
    ({"canary": {"prompt": "2+2=", "expect": 4}},
     "canary: a canary with `prompt` needs a text as `expect`, such as '4'"),
    ({"canary": {"promt": "2+2="}}, "canary: unknown field `promt`"),
    ({"api": "treadle"}, 'canary: the API treadle completes no prompt; write {"path": "/v1/score"'),
    ({"backend": "torch", "canary": None},
     'api: engines of the backend \'torch\' have another one; write "api": "treadle"'),
    ({"backend": "vllm", "api": "treadle", "canary": None},
     'api: engines of the backend \'vllm\' have another one; write "api": "openai"'),
    ({"priority": "high"}, "priority: must be a whole number, not text"),
    ({"min_residency_s": -1}, "min_residency_s: must be at least 0"),
    ({"start_s": 0}, "start_s: must be greater than 0"),
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
        (b'{"a/b": {}}', "entry 'a/b': its name should be letters, digits, '.', '_' and '-', at most 64"),
        (b'{"' + b"x" * 65 + b'": {}}', f"entry '{'x' * 64}': its name should be"),
        (b'{"a": 1}', "entry 'a': must be an object, not a whole number"),
        (b'{"a": ' + b"[" * 100_000, "it is no JSON object of entries"),
    ],
)
def test_a_file_that_is_no_object_of_entries(content: bytes, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  # as above
        read_entries(content)
    assert str(error.value).startswith(message)


def test_the_number_of_entries_is_bounded() -> None:
    many = {f"s{number}": JUDGE for number in range(MOST_SERVICES + 1)}
    with pytest.raises(ValueError, match="it has 257 entries; the most are 256"):
        read_entries(msgspec.json.encode(many))
    assert len(read_entries(msgspec.json.encode(dict(list(many.items())[1:])))) == MOST_SERVICES


# ---- the file --------------------------------------------------------------------------------------------------------


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "services.json"
    path.write_bytes(msgspec.json.encode({"judge-a": JUDGE, "b": entry(priority=3)}))

    assert {name: each.priority for name, each in load_entries(path).items()} == {"judge-a": 0, "b": 3}
    assert load_entries(None) == {}


def test_a_file_that_everybody_may_change_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "services.json"
    path.write_bytes(b"{}")
    path.chmod(0o646)
    with pytest.raises(WrongEntries, match="has commands, and every account may change it: run `chmod o-w "):
        load_entries(path)


def test_errors_of_a_file_name_it(tmp_path: Path) -> None:
    path = tmp_path / "services.json"
    with pytest.raises(WrongEntries, match=r"GPU_MANAGER_SERVICES: .*services\.json cannot be read \(No such file"):
        load_entries(path)
    with pytest.raises(WrongEntries, match="cannot be read"):
        load_entries(tmp_path)
    with pytest.raises(WrongEntries, match="is no file"):
        load_entries(Path("/dev/null"))
    path.write_bytes(msgspec.json.encode({"judge-a": entry(concurrency=0)}))
    with pytest.raises(WrongEntries, match=r"services\.json: entry 'judge-a': concurrency: must be at least 1"):
        load_entries(path)
    path.write_bytes(b" " * ((4 << 20) + 1))
    with pytest.raises(WrongEntries, match="is larger than 4194304 bytes"):
        load_entries(path)


# ---- REST ------------------------------------------------------------------------------------------------------------

ENTRIES = {"judge-a": read(), "b": read(priority=9, concurrency=4)}


def requested(body: dict[str, Any] | bytes, *, allow_commands: bool = False) -> ServiceEntry:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return requested_entry(raw, ENTRIES, allow_commands=allow_commands)


def test_rest_names_an_entry_of_the_file_and_may_change_three_numbers() -> None:
    assert requested({"entry": "b"}) == ENTRIES["b"]
    found = requested({"entry": "judge-a", "priority": 2, "min_residency_s": 0, "concurrency": 8})
    assert (found.priority, found.min_residency_s, found.concurrency) == (2, 0.0, 8)
    assert (found.command, found.canary) == (ENTRIES["judge-a"].command, ENTRIES["judge-a"].canary)


REFUSED: list[tuple[dict[str, Any] | bytes, str]] = [
    (JUDGE, 'an entry over REST names one of this node\'s file: {"entry": "judge-a"}; the entries are b, judge-a. A '),
    ({}, "an entry over REST names one of this node's file"),
    (entry(command=None, url="http://169.254.169.254/"), "an entry over REST names one of this node's file"),
    ({"entry": "judge-a", "command": COMMAND}, "unknown field `command`; the fields are `entry`, `priority`, "),
    ({"entry": "judge-a", "url": "http://a/"}, "unknown field `url`"),
    ({"entry": "judge-a", "env": {"LD_PRELOAD": "/tmp/x.so"}}, "unknown field `env`"),
    ({"entry": "judge-a", "model": "b"}, "unknown field `model`"),
    ({"entry": "judge-a", "memory_gb": {"awake": 1}}, "unknown field `memory_gb`"),
    ({"entry": "c"}, "entry: 'c' is not in GPU_MANAGER_SERVICES; the entries are b, judge-a"),
    ({"entry": "../a"}, "entry: must be 1 to 64 letters"),
    ({"entry": "judge-a", "concurrency": 0}, "concurrency: must be at least 1"),
    (b"[]", "the body must be an object, not a list"),
    (b"{", "the body is not JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "message"), REFUSED, ids=range(len(REFUSED)))
def test_rest_never_brings_a_command_unless_the_operator_allows_it(body: dict[str, Any] | bytes, message: str) -> None:
    with pytest.raises(BadRequest) as error:
        requested(body)
    assert str(error.value).startswith(message)


def test_a_whole_entry_over_rest_if_the_operator_allows_it() -> None:
    assert requested(entry(priority=1), allow_commands=True) == read(priority=1)
    assert requested({"entry": "b"}, allow_commands=True) == ENTRIES["b"]
    with pytest.raises(BadRequest, match=r"command: the place \{gpu\} is unknown"):
        requested(entry(command=["a", "{gpu}", "{port}"]), allow_commands=True)
    with pytest.raises(BadRequest, match="GPU_MANAGER_ALLOW_COMMANDS=true"):
        requested(JUDGE)
    with pytest.raises(BadRequest, match="missing field `memory_gb`"):
        requested(entry(memory_gb=None), allow_commands=True)


def test_a_node_without_a_file_has_no_entries() -> None:
    with pytest.raises(BadRequest, match="the entries are none"):
        requested_entry(b'{"entry": "a"}', {}, allow_commands=False)
