"""``treadle tenants``: weights of tenants, as text and as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiohttp.test_utils import unused_port
from typer.testing import CliRunner, Result

from tests.e2e.processes import Service, running_service
from tests.e2e.replicas import leads, until
from treadle.cli.main import app
from treadle.testing.servers import running_valkey, temporary_home

Call = Callable[..., Result]


def tenants(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["tenants", *arguments])


@pytest.fixture(scope="module")
def proxy() -> Iterator[Service]:
    with temporary_home() as home, running_valkey(home) as url, running_service("proxy", url) as running:
        asyncio.run(until(lambda: leads(running)))
        yield running


@pytest.fixture
def call(proxy: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    """The command beside a proxy without weights."""
    monkeypatch.setenv("TREADLE_URL", proxy.url)
    yield tenants
    for tenant in json.loads(tenants("--json").stdout)["tenants"]:
        tenants("delete", tenant["name"])


def test_weights_are_set_shown_and_reset(call: Call) -> None:
    assert call().stdout == "no weight was set: every tenant has weight 1\n"
    assert call("set", "ada", "--weight", "2.5").stdout == "ada has weight 2.5\n"
    assert call("set", "a-longer-name", "--weight", "0.001").stdout == "a-longer-name has weight 0.001\n"
    assert call().stdout == "TENANT          WEIGHT\na-longer-name    0.001\nada                2.5\n"
    assert call("delete", "ada").stdout == "ada has weight 1\n"
    assert call("delete", "ada").stdout == "ada has weight 1\n", "it may be repeated"
    assert call().stdout == "TENANT          WEIGHT\na-longer-name    0.001\n"


@pytest.mark.parametrize("first", [False, True])
def test_json_is_one_object(call: Call, first: bool) -> None:
    """`first`: the option stands before the command."""

    def document(*arguments: str) -> object:
        done = call("--json", *arguments) if first else call(*arguments, "--json")
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    assert document() == {"tenants": []}
    assert document("set", "ada", "--weight", "2") == {"name": "ada", "weight": 2.0}
    assert document() == {"tenants": [{"name": "ada", "weight": 2.0}]}
    assert document("delete", "ada") == {"name": "ada", "weight": 1.0}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("set", "ada", "--weight", "0"), "weight: must be at least 0.001"),
        (("set", "ada", "--weight", "1001"), "weight: must be at most 1000"),
        (("set", "ada", "--weight", "nan"), "weight: must be"),
        (("set", "a b", "--weight", "1"), "tenant in the path: must be 1 to 64 letters"),
        (("delete", ".."), "'..' is not a name"),
    ],
)
def test_a_wrong_name_or_weight_is_one_line_and_changes_nothing(
    call: Call, arguments: tuple[str, ...], words: str
) -> None:
    done = call(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.startswith(f"treadle tenants {arguments[0]}: ")
    assert json.loads(call("--json").stdout) == {"tenants": []}


@pytest.mark.parametrize("arguments", [(), ("set", "ada", "--weight", "2"), ("delete", "ada")])
def test_without_a_stack_the_exit_status_is_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.delenv("TREADLE_URL", raising=False)
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path / "another"))
    chosen: list[Path] = []

    def find(environ: object, url: str | None, home: Path) -> None:
        chosen.append(home)

    monkeypatch.setattr("treadle.cli.proxy.find_proxy", find)
    for given in (("--home", str(tmp_path), *arguments), (*arguments, "--home", str(tmp_path))):
        done = tenants(*given)
        assert (done.exit_code, "no stack is up: start one with treadle up" in done.stderr) == (3, True), done.stderr
    assert chosen == [tmp_path, tmp_path], "the option, not TREADLE_HOME"
    monkeypatch.undo()
    done = tenants("--url", f"http://127.0.0.1:{unused_port()}", *arguments)
    assert (done.exit_code, "no stack answers at http://127.0.0.1" in done.stderr) == (3, True), done.stderr
