"""``treadle quota``: quotas as text and as JSON."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import unused_port
from rich.console import Console
from typer.testing import CliRunner, Result

from tests.e2e.processes import Service, running_service
from tests.e2e.replicas import leads, until
from treadle.cli.main import app
from treadle.cli.quota import _clock, _table
from treadle.client.answers import QuotaRateView, QuotaView, Upstream
from treadle.testing.servers import running_valkey, temporary_home

Call = Callable[..., Result]
TREADLE = Path(sys.executable).with_name("treadle")


def quota(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["quota", *arguments])


@pytest.fixture(scope="module")
def proxy() -> Iterator[Service]:
    with temporary_home() as home, running_valkey(home) as url, running_service("proxy", url) as running:
        asyncio.run(until(lambda: leads(running)))
        yield running


@pytest.fixture
def call(proxy: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    """The command beside a proxy without quotas."""
    monkeypatch.setenv("TREADLE_URL", proxy.url)
    yield quota
    for one in json.loads(quota("--json").stdout)["quotas"]:
        quota("delete", one["name"])


def lines(done: Result) -> list[list[str]]:
    assert done.exit_code == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_quotas_are_set_shown_and_deleted(call: Call) -> None:
    assert "create one with treadle quota set NAME" in call().stdout
    title = ["QUOTA", "LIMIT", "TAKEN", "FREE", "FULL", "WAITING"]
    search = call("set", "search", "--concurrency", "32", "--rate", "10/s:20", "--rate", "1000/d", "--rate", "60/30s")
    assert lines(search) == [
        title,
        ["search", "32", "at", "once", "0", "32"],
        ["10/s,", "20", "at", "once", "0", "20"],
        ["1000/d", "0", "1000"],
        ["60/30s", "0", "60"],
    ]
    money = call("set", "money", "--rate", "50", "--unit", "usd")
    assert lines(money) == [title, ["money", "50", "usd,", "never", "refilled", "0", "50"]]
    assert lines(call("show", "money")) == lines(money)
    assert lines(call("ls")) == lines(call()) == [*lines(money), *lines(search)[1:]]
    assert call("delete", "search").stdout == "search is deleted\n"
    again = call("delete", "search")
    assert (again.exit_code, again.stdout) == (2, "")
    assert again.stderr == "treadle quota delete: no quota 'search'; treadle quota ls lists all\n"
    assert lines(call()) == lines(money)


@pytest.mark.parametrize("first", [False, True])
def test_json_is_one_object(call: Call, first: bool) -> None:
    """`first`: the option stands before the command."""

    def document(*arguments: str) -> object:
        done = call("--json", *arguments) if first else call(*arguments, "--json")
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    free = {"waiting": {}, "waiting_actions": 0, "next_free_at": None, "upstream": {"state": "ok"}}
    one = {"name": "slots", "concurrency": 0.5, "held": 0.0, "actions": 0, "rates": [], "weights": {"ada": 2.0}, **free}
    assert document() == {"quotas": []}
    assert document("set", "slots", "--concurrency", "0.5", "--weight", "ada=2") == one
    assert document("show", "slots") == one
    assert document("ls") == {"quotas": [one]}
    assert document("delete", "slots") == {"name": "slots"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("set", "search"), "a quota has `concurrency`, `rates` or both"),
        (("set", "search", "--concurrency", "-1"), "concurrency: must be at least 0"),
        (("set", "search", "--concurrency", "nan", "--rate", "10/s"), "must be finite numbers"),
        (("set", "search", "--rate", f"10/{'9' * 400}s"), "must be finite numbers"),
        (("set", "search", "--rate", "10/w"), "'10/w' is no rate; a period is s (seconds), m (minutes)"),
        (("set", "search", "--rate", "10/min"), "m (minutes), h (hours) or d (days): write 10/s, 1000/d, 60/30s"),
        (("set", "search", "--rate", "10/hour"), "'10/hour' is no rate; a period is s (seconds)"),
        (
            ("set", "search", "--concurrency", "3", "--concurrency", "4.5"),
            "--concurrency is given 2 times: 3 and 4.5; the smallest limit counts, so give it once",
        ),
        (("set", "search", "--rate", "10/"), "'10/' is no rate"),
        (("set", "search", "--rate", "1.2.3/s"), "'1.2.3/s' is no rate"),
        (("set", "search", "--rate", "1/s", "--rate", "2/1s"), "the same `period_s`"),
        (
            ("set", "search", "--rate", "1/s", "--weight", "team-a"),
            "--weight 'team-a' is no weight; write TENANT=WEIGHT",
        ),
        (("set", "search", "--rate", "1/s", "--weight", "team-a=0"), "must be greater than 0"),
        (("set", "search", "--concurrency", "1", "--unit", "usd"), "--unit 'usd' is the unit of a rate; add --rate"),
        (("set", "search", "--rate", "5", "--unit", "x\x1b[31m"), "unit: must be printable text without control"),
        (("set", "a b", "--concurrency", "1"), "quota in the path: must be 1 to 64 letters"),
        (("show", "absent"), "no quota 'absent'; create it with treadle quota set absent --concurrency"),
        (("delete", ".."), "'..' is not a name"),
    ],
)
def test_a_wrong_name_or_limit_is_one_line_and_changes_nothing(
    call: Call, arguments: tuple[str, ...], words: str
) -> None:
    done = call(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.startswith(f"treadle quota {arguments[0]}: ")
    assert json.loads(call("--json").stdout) == {"quotas": []}


@pytest.mark.usefixtures("interruptible")
def test_watch_shows_changes_until_it_is_interrupted(call: Call, proxy: Service) -> None:
    call("set", "search", "--concurrency", "7")
    environ = {**os.environ, "TREADLE_URL": proxy.url}
    command = [str(TREADLE), "quota", "watch", "--seconds", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ, text=True) as watching:
        assert watching.stdout is not None
        for shown, following in (("7 at once", "8"), ("8 at once", "9")):
            assert any(shown in line for line in iter(watching.stdout.readline, ""))
            call("set", "search", "--concurrency", following)
        watching.send_signal(signal.SIGINT)
        _, error = watching.communicate(timeout=30)
    assert (watching.returncode, error) == (130, "treadle quota watch: interrupted\n")


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("options", [("watch", "--json"), ("--json", "watch")])
def test_watch_writes_a_line_of_json_at_each_look(call: Call, proxy: Service, options: tuple[str, ...]) -> None:
    call("set", "search", "--concurrency", "7")
    command = [str(TREADLE), "quota", *options, "--seconds", "0.1"]
    environ = {**os.environ, "TREADLE_URL": proxy.url}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ, text=True) as watching:
        assert watching.stdout is not None
        looks = [json.loads(watching.stdout.readline()) for _ in range(3)]
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=30)
    assert [[(quota["name"], quota["concurrency"]) for quota in look["quotas"]] for look in looks] == [
        [("search", 7)]
    ] * 3
    assert watching.returncode == 130


@pytest.mark.parametrize("arguments", [(), ("ls",), ("show", "a"), ("set", "a", "--rate", "1/s"), ("watch",)])
def test_without_a_stack_the_exit_status_is_3(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    monkeypatch.delenv("TREADLE_URL", raising=False)
    done = quota("--url", f"http://127.0.0.1:{unused_port()}", *arguments)
    assert (done.exit_code, "no stack answers at http://127.0.0.1" in done.stderr) == (3, True), done.stderr


def test_all_columns_have_one_format_of_numbers(call: Call) -> None:
    rates = ("--rate", "1000000/m:1200000", "--rate", "2000000", "--rate", "9999.8/d", "--rate", "1234.5/h")
    assert lines(call("set", "big", "--concurrency", "250000", *rates, "--unit", "tokens"))[1:] == [
        ["big", "250,000", "at", "once", "0", "250,000"],
        ["1,000,000", "tokens/m,", "1,200,000", "at", "once", "0", "1,200,000"],
        ["2,000,000", "tokens,", "never", "refilled", "0", "2,000,000"],
        ["10,000", "tokens/d", "0", "10,000"],
        ["1234.5", "tokens/h", "0", "1234"],
    ]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("240/24d", "240/24d"),
        ("240/576h", "240/24d"),
        ("10/120m", "10/2h"),
        ("60/90s", "60/90s"),
        ("60/2073601s", "60/2073601s"),
        ("60/0.5s", "60/0.5s"),
        ("60/1000000.5s", "60/1000000.5s"),
        ("60/1d", "60/d"),
        ("60/7d", "60/7d"),
        ("0.00001/s", "0.00001/s"),
    ],
)
def test_a_period_is_shown_as_it_could_be_given(call: Call, given: str, shown: str) -> None:
    assert lines(call("set", "slow", "--rate", given))[1][:2] == ["slow", shown]
    assert lines(call("set", "slow", "--rate", shown))[1][:2] == ["slow", shown]


def test_a_unit_is_no_markup(call: Call) -> None:
    assert ["search", "5", "[/red],", "never", "refilled", "0", "5"] in lines(
        call("set", "search", "--rate", "5", "--unit", "[/red]")
    )


def test_control_characters_do_not_reach_the_terminal() -> None:
    """A quota of a former release may have them."""
    rate = QuotaRateView(limit=5.0, period_s=None, burst=None, unit="x\x1b[31m", taken=0.0, free=5.0, full_at=None)
    upstream = Upstream(state="open", reason="HTTP 500\x1b]0;title\x07")
    rest: dict[str, Any] = {"weights": {}, "waiting": {}, "waiting_actions": 0, "next_free_at": None}
    view = QuotaView(name="old", concurrency=None, held=0.0, actions=0, rates=[rate], upstream=upstream, **rest)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(_table([view]))
    shown = captured.get()
    assert "5 x\ufffd[31m, never refilled" in shown
    assert shown.replace("\n", "").isprintable()


def test_a_provider_that_does_not_answer_as_it_should_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    slowed = Upstream(state="slowed", not_before=1e9, most=7, reason="HTTP 429 [red]")
    rest: dict[str, Any] = {"rates": [], "weights": {}, "waiting": {}, "waiting_actions": 0, "next_free_at": None}
    views = [
        QuotaView(name="search", concurrency=2.0, held=1.0, actions=1, upstream=slowed, **rest),
        QuotaView(name="judge", concurrency=2.0, held=0.0, actions=0, upstream=Upstream(state="ok"), **rest),
    ]
    Console(width=200).print(_table(views))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "provider slowed, no call before " in lines[2]
    assert ", 7 calls at once: HTTP 429 [red]" in lines[2]
    assert lines[1].split()[-3:] == ["held", "by", "1"]


@pytest.mark.parametrize("unix_s", [1e12, 253_402_300_800.0, 1e30, 1e308, math.inf, -math.inf, math.nan, -1e12, -1e30])
def test_a_time_that_is_no_date_breaks_no_table(unix_s: float) -> None:
    rate = QuotaRateView(limit=1e-22, period_s=1.0, burst=None, unit="", taken=1e-10, free=0.0, full_at=unix_s)
    view = QuotaView(
        name="tiny",
        concurrency=None,
        held=0.0,
        actions=0,
        rates=[rate],
        upstream=Upstream(state="ok"),
        weights={},
        waiting={},
        waiting_actions=0,
        next_free_at=None,
    )
    console = Console(width=200)
    with console.capture() as captured:
        console.print(_table([view]))
    assert captured.get().splitlines()[1].split() == ["tiny", "1e-22/s", "1e-10", "0", "never"]


def test_a_time_has_its_date_unless_it_is_today() -> None:
    now = datetime.now(UTC)
    later = now + timedelta(days=3)
    assert _clock(now.timestamp()) == f"{now.astimezone():%H:%M:%S}"
    assert _clock(-1.0).startswith(("1969-12-31 ", "1970-01-01 "))
    assert _clock(later.timestamp()) == f"{later.astimezone():%Y-%m-%d %H:%M:%S}"
