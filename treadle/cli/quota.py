"""``treadle quota``."""

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Final

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from shared.runtime.numbers import number
from treadle.cli.groups import AsJson, GroupOptions, Url
from treadle.cli.proxy import WRONG, CommandFailed, exit_status
from treadle.cli.tables import output, printable
from treadle.cli.up import Home
from treadle.cli.watching import watch_lines, watch_tables
from treadle.client.answers import QuotaRateView, QuotaView, Upstream
from treadle.client.errors import NotFound
from treadle.client.requests import QuotaRate

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the quota.", show_default=False)]

PERIODS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
"""Letter of a period -> seconds."""
DIGITS: Final = 4
"""Digits of amounts that change. Limits, which an operator has written, have those of `number`."""
_RATE: Final = re.compile(r"(?P<limit>[0-9.]+)(/(?P<count>[0-9.]*)(?P<letter>[smhd]?)(:(?P<burst>[0-9.]+))?)?")


def register(app: typer.Typer) -> None:
    app.callback(invoke_without_command=True)(quota)
    app.command("ls")(ls)
    app.command("show")(show)
    app.command("set")(set_limits)
    app.command("delete")(delete)
    app.command("watch")(watch)


def quota(context: typer.Context, as_json: AsJson = False, url: Url = None, home: Home = None) -> None:
    """Show, watch and set quotas: limits of what all actions take together, such as slots and rates of an external API.

    Actions and stages name them: "quotas": {"search": 1}. Exit status: 2 a name or a limit is wrong; 3 no stack
    answers.
    """
    context.obj = GroupOptions(url, home, as_json)
    if context.invoked_subcommand is None:
        ls(context, as_json, url, home)


def ls(context: typer.Context, as_json: AsJson = False, url: Url = None, home: Home = None) -> None:
    """List the quotas with their limits and what is taken."""
    options = GroupOptions.of(context, url, home, as_json)
    with exit_status("quota ls"):
        views = options.call(lambda client: client.quotas.all())
        if options.as_json:
            typer.echo(msgspec.json.encode({"quotas": views}))
        elif not views:
            typer.echo("there is no quota; create one with treadle quota set NAME --concurrency 32 --rate 10/s")
        else:
            output().print(_table(views))


def show(context: typer.Context, name: Name, as_json: AsJson = False, url: Url = None, home: Home = None) -> None:
    """Show one quota with its limits and what is taken."""
    options = GroupOptions.of(context, url, home, as_json)
    with exit_status("quota show"):
        try:
            view = options.call(lambda client: client.quotas.view(name))
        except NotFound as error:  # its message is for callers of the API
            how = f"treadle quota set {name} --concurrency 32 --rate 10/s"
            raise CommandFailed(f"no quota {name!r}; create it with {how}", WRONG) from error
        _show(view, options.as_json)


def set_limits(
    context: typer.Context,
    name: Name,
    concurrency: Annotated[
        list[float] | None,
        typer.Option(metavar="AMOUNT", help="Most that granted actions hold together.", show_default=False),
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMIT[/PERIOD[:BURST]]",
            help="10/s, 1000/d, 60/30s, 100/m:20 (20 at once), 50 (never refilled); may be repeated.",
            show_default=False,
        ),
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TENANT=WEIGHT",
            help="Share of a tenant while several wait: team-a=2; others have 1; may be repeated.",
            show_default=False,
        ),
    ] = None,
    unit: Annotated[str, typer.Option(help="What the rates count, for people: usd, tokens.", show_default=False)] = "",
    as_json: AsJson = False,
    url: Url = None,
    home: Home = None,
) -> None:
    """Create a quota or replace its limits. What is taken stays taken.

    A search API: treadle quota set search --concurrency 32 --rate 10/s --rate 1000/d
    """
    options = GroupOptions.of(context, url, home, as_json)
    with exit_status("quota set"):
        most = _concurrency(concurrency or ())
        rates = [_rate(text, unit) for text in rate or ()]
        if unit and not rates:
            raise CommandFailed(f"--unit {unit!r} is the unit of a rate; add --rate, for example --rate 50", 2)
        weights = dict(_weight(text) for text in weight or ())
        view = options.call(lambda client: client.quotas.set(name, concurrency=most, rates=rates, weights=weights))
        _show(view, options.as_json)


def delete(context: typer.Context, name: Name, as_json: AsJson = False, url: Url = None, home: Home = None) -> None:
    """Delete a quota. Work that needs it is stuck until a quota of this name exists again."""
    options = GroupOptions.of(context, url, home, as_json)
    with exit_status("quota delete"):
        try:
            options.call(lambda client: client.quotas.view(name))  # a delete of the API is idempotent
        except NotFound as error:
            raise CommandFailed(f"no quota {name!r}; treadle quota ls lists all", WRONG) from error
        options.call(lambda client: client.quotas.delete(name))
        typer.echo(json.dumps({"name": name}) if options.as_json else f"{name} is deleted")


def watch(
    context: typer.Context,
    seconds: Annotated[float, typer.Option(help="Between two looks.", min=0.1)] = 1.0,
    as_json: AsJson = False,
    url: Url = None,
    home: Home = None,
) -> None:
    """Show all quotas until Ctrl-C. With --json: each look is one line."""
    options = GroupOptions.of(context, url, home, as_json)

    def look() -> list[QuotaView]:
        return options.call(lambda client: client.quotas.all())

    with exit_status("quota watch"):
        if options.as_json:
            watch_lines(lambda: msgspec.json.encode({"quotas": look()}), seconds)
        watch_tables(lambda: _table(look()), seconds)


def _show(view: QuotaView, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(view))
    else:
        output().print(_table([view]))


def _concurrency(given: Sequence[float]) -> float | None:
    """Return the only concurrency.

    Raises:
        CommandFailed: there are several.
    """
    if len(given) > 1:
        several = " and ".join(f"{one:g}" for one in given)
        raise CommandFailed(
            f"--concurrency is given {len(given)} times: {several}; the smallest limit counts, so give it once", 2
        )
    return given[0] if given else None


def _rate(text: str, unit: str) -> QuotaRate:
    """Return the rate that a text means.

    Raises:
        CommandFailed: it means none.
    """
    found = _RATE.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        limit, burst = float(found["limit"]), found["burst"]
        count, letter = found["count"], found["letter"]
        if count is None:
            return QuotaRate(limit=limit, unit=unit)
        if not (count or letter):
            raise ValueError
        period_s = float(count or 1) * PERIODS[letter or "s"]
        return QuotaRate(limit=limit, period_s=period_s, burst=None if burst is None else float(burst), unit=unit)
    except ValueError as error:
        letters = "s (seconds), m (minutes), h (hours) or d (days)"
        examples = "10/s, 1000/d, 60/30s, 100/m:20 (20 at once) or 50 (never refilled)"
        raise CommandFailed(f"--rate {text!r} is no rate; a period is {letters}: write {examples}", 2) from error


def _weight(text: str) -> tuple[str, float]:
    """Return the tenant and the weight that a text means.

    Raises:
        CommandFailed: it means none.
    """
    tenant, _, weight = text.rpartition("=")
    try:
        return tenant, float(weight)
    except ValueError as error:
        raise CommandFailed(f"--weight {text!r} is no weight; write TENANT=WEIGHT: team-a=2", 2) from error


def _table(views: Sequence[QuotaView]) -> Table:
    """One line for each limit."""
    table = Table(pad_edge=False, box=None)
    for title, justify in (
        ("QUOTA", "left"),
        ("LIMIT", "left"),
        ("TAKEN", "right"),
        ("FREE", "right"),
        ("FULL", "left"),
        ("WAITING", "right"),
    ):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]  # a literal
    for view in views:
        name, waiting = view.name, str(view.waiting_actions or "")
        if view.concurrency is not None:
            free = max(0.0, view.concurrency - view.held)
            holders = f"held by {view.actions}" if view.actions else ""  # actions and leases
            limit = f"{number(view.concurrency)} at once"
            table.add_row(name, limit, number(view.held, DIGITS), number(free, DIGITS), holders, waiting)
            name = waiting = ""
        for rate in view.rates:
            table.add_row(
                name, _limit(rate), number(rate.taken, DIGITS), number(rate.free, DIGITS), _full(rate), waiting
            )
            name = waiting = ""
        if view.upstream.state != "ok":
            table.add_row("", escape(_upstream(view.upstream)))
        for tenant in sorted(view.waiting.keys() | view.weights.keys()):
            one, weight = view.waiting.get(tenant), view.weights.get(tenant)
            share = f"  {tenant}" if weight is None else f"  {tenant}, weight {number(weight, DIGITS)}"
            table.add_row("", share, "", "", "", "" if one is None else f"{one.actions}, {number(one.amount, DIGITS)}")
    return table


def _upstream(upstream: Upstream) -> str:
    """State of the external service, in words."""
    parts = [f"provider {upstream.state}"]
    if upstream.not_before is not None:
        parts.append(f"no call before {_clock(upstream.not_before)}")
    if upstream.most is not None:
        parts.append(f"{upstream.most} calls at once")
    return ", ".join(parts) + (f": {printable(upstream.reason)}" if upstream.reason else "")


def _limit(rate: QuotaRateView) -> str:
    unit = f" {escape(printable(rate.unit))}" if rate.unit else ""
    burst = "" if rate.burst is None else f", {number(rate.burst)} at once"
    if rate.period_s is None:
        return f"{number(rate.limit)}{unit}, never refilled"
    fitting = [(letter, seconds) for letter, seconds in PERIODS.items() if rate.period_s % seconds == 0]
    letter, seconds = fitting[-1] if fitting else ("s", 1.0)
    count = f"{Decimal(f'{rate.period_s / seconds:.12g}'):f}"  # as `--rate` reads it: without separators and exponent
    return f"{number(rate.limit)}{unit}/{'' if count == '1' else count}{letter}{burst}"


def _full(rate: QuotaRateView) -> str:
    if not rate.taken:
        return ""
    return "never" if rate.full_at is None else _clock(rate.full_at)


def _clock(unix_s: float) -> str:
    """Local time, with the date if it is not today; `never` if no date can express it, as after the year 9999."""
    try:
        at, now = datetime.fromtimestamp(unix_s, UTC).astimezone(), datetime.now(UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return "never"
    return f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M:%S}"
