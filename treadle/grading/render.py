"""A report as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from treadle.client.progress import STYLES
from treadle.grading.agreement import Agreement
from treadle.grading.report import GradingReport
from treadle.grading.resources import PoolUse
from treadle.grading.rewards import GroupRewards, Masked, Rewards
from treadle.grading.timing import Acts, StageActs, TimeSummary

GROUPS_SHOWN = 12
DISAGREEMENTS_SHOWN = 10
REASONS_SHOWN = 8
LONGEST_REASON = 240
BLOCKS = " ▁▂▃▄▅▆▇█"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 request`, `2 requests`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show(report: GradingReport, console: Console) -> None:
    """Print a report: rewards, times, resources, agreement, problems."""
    for part in _parts(report):
        console.print(part)


def _parts(report: GradingReport) -> Iterator[RenderableType]:
    yield from rewards_part(report.rewards)
    yield acts_table(report.acts, report.stages)
    yield from pools_part(report.pools)
    yield _delay(report)
    if report.agreement is not None:
        yield from agreement_part(report.agreement)
    yield from _troubles(report)


def rewards_part(rewards: Rewards) -> Iterator[RenderableType]:
    """Yield verdicts, mean reward and groups."""
    counts = [
        f"[{style}]{rewards.verdicts[name]} {name}[/]" for name, style in STYLES.items() if rewards.verdicts[name]
    ]
    yield f"[bold]Rewards[/]  {counted(rewards.requests, 'request')}: {', '.join(counts) or 'no answers'}"
    if rewards.mean is not None:
        yield f"  mean reward {rewards.mean:.4f} of {rewards.scored} scored"
    if not rewards.groups:
        return
    if len(rewards.groups) <= GROUPS_SHOWN:
        yield _groups_table(rewards.groups)
    else:
        yield f"  {len(rewards.groups)} groups by mean reward, 0 to 1: [cyan]{histogram(rewards.groups)}[/]"
    informative = f"{rewards.informative_groups} of {counted(len(rewards.groups), 'group')}"
    yield f"  informative (rewards differ, so GRPO learns from them): {informative}"


def _groups_table(groups: Sequence[GroupRewards]) -> Table:
    table = Table("group", "requests", "mean reward", "std", box=None, padding=(0, 2, 0, 2))
    for each in groups:
        mean, std = ("-" if value is None else f"{value:.4f}" for value in (each.mean, each.std))
        table.add_row(Text(each.group), str(each.requests), mean, std)
    return table


def histogram(groups: Sequence[GroupRewards], bins: int = 11) -> str:
    """Return one character per bin. Means outside 0..1 count in the outer bins."""
    counts = [0] * bins
    for each in groups:
        if each.mean is not None:
            counts[min(bins - 1, max(0, round(each.mean * (bins - 1))))] += 1
    most = max(counts) or 1
    return "".join(BLOCKS[-(-count * (len(BLOCKS) - 1) // most)] for count in counts)


def acts_table(acts: Acts, stages: Sequence[StageActs]) -> Table:
    """Return a table of ACT by part, in milliseconds."""
    table = Table("ACT, ms", box=None, title_justify="left", padding=(0, 2, 0, 2))
    for name in ("mean", "p50", "p99", "max"):
        table.add_column(name, justify="right")
    rows: list[tuple[str, TimeSummary | None]] = [("queueing", acts.queueing), ("execution", acts.execution)]
    if len(stages) > 1:
        rows += [(f"  {stage.name}", stage.execution) for stage in stages]
    rows += [("overhead", acts.overhead), ("total", acts.total)]
    for name, spread in rows:
        values = [spread.mean, spread.p50, spread.p99, spread.max] if spread is not None else []
        table.add_row(name, *(f"{value * 1000:,.1f}" for value in values))
    return table


def pools_part(pools: Sequence[PoolUse]) -> Iterator[RenderableType]:
    """Yield resource time, compared with a dedicated pool's."""
    for use in pools:
        resource = use.pool.partition("@")[0].removesuffix("s")
        yield (
            f"[bold]Resources[/]  {use.pool}: {use.used_unit_s:,.1f} {resource}-seconds used. A dedicated pool without "
            f"queueing (ZQ-Dedicated, DistRS §6.1) holds {counted(use.zero_queue_units, resource)} for this: "
            f"{use.dedicated_unit_s:,.1f} {resource}-seconds, {use.saved:,.1f} times as much"
        )


def _delay(report: GradingReport) -> str:
    within = "within" if report.extra_delay_s <= report.max_extra_delay_s else "beyond"
    return (
        f"[bold]Time[/]  {report.elapsed_s:.2f} s, {report.requests_per_s:,.0f} requests/s; programs used "
        f"{report.cpu_s:.1f} s of CPU. Extra delay d = {report.extra_delay_s:.2f} s, {within} the "
        f"{report.max_extra_delay_s:g} s that the task tolerates ({_arrivals(report)})"
    )


def _arrivals(report: GradingReport) -> str:
    spread_s = max((batch.arrivals_s for batch in report.batches), default=0.0)
    return f"a rollout spreads its requests; these arrived within {spread_s:.2f} s"


def agreement_part(agreement: Agreement) -> Iterator[RenderableType]:
    """Yield the agreement with recorded verdicts, and the differences."""
    n = agreement.compared
    style = "green" if agreement.agreed == n else "red"
    yield (
        f"[bold]Agreement[/]  [{style}]{agreement.agreed:,} of {counted(n, 'recorded verdict')} confirmed[/] "
        f"({agreement.agreed_on_passed:,} of {n:,} on passed or not)"
    )
    if not agreement.disagreements:
        return
    table = Table("id", "recorded", "now", "reason", box=None, padding=(0, 2, 0, 2))
    for each in agreement.disagreements[:DISAGREEMENTS_SHOWN]:
        table.add_row(Text(each.id), str(each.expected), each.got, Text(each.reason[:100]))
    yield table
    if (more := len(agreement.disagreements) - DISAGREEMENTS_SHOWN) > 0:
        yield f"  and {more} more; --out FILE has every answer"


def _troubles(report: GradingReport) -> Iterator[RenderableType]:
    yield from masked_part(report.without_verdict)
    for id_, why in list(report.rejected.items())[:DISAGREEMENTS_SHOWN]:
        yield Text(f"not accepted: {id_}: {why}", style="red")
    if (more := len(report.rejected) - DISAGREEMENTS_SHOWN) > 0:
        yield f"  and {more:,} more not accepted; --json has every reason"
    if report.unanswered:
        yield f"[red]{counted(report.unanswered, 'request')} not answered: the batch ended before[/]"
    if report.repeated:
        yield f"[red]{counted(report.repeated, 'answer')} came twice: please report this[/]"


def masked_part(masked: Sequence[Masked]) -> Iterator[RenderableType]:
    """Yield the reasons of requests without a verdict."""
    if not masked:
        return
    requests = counted(sum(each.requests for each in masked), "request")
    yield f"[bold]No verdict[/]  {requests} to leave out: no statement about the program"
    for each in masked[:REASONS_SHOWN]:
        ended = f"{each.ended}, a failure of the mesh" if each.is_failure else each.ended
        why = f": {each.reason[:LONGEST_REASON]}" if each.reason else ""
        yield Text(f"  {each.requests:,} {ended}{why}", style="red" if each.is_failure else "yellow")
    if more := masked[REASONS_SHOWN:]:
        yield f"  and {sum(each.requests for each in more):,} for other reasons; --json has them all"
