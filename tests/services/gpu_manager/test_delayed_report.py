"""One report for engines that become resident together, and reports at once of all other changes."""

from __future__ import annotations

import asyncio

import pytest

from services.gpu_manager.delayed_report import REPORTED_AFTER_S, DelayedReport


async def test_engines_that_become_resident_together_are_one_report_and_later_ones_another() -> None:
    reports: list[int] = []
    delayed = DelayedReport(lambda: reports.append(1))
    for state in ("resident", "running", "resident"):
        delayed.changed(state)
    assert not reports, "calls that wait for an engine leave first"
    for expected in (1, 2):
        async with asyncio.timeout(20):
            while len(reports) < expected:  # noqa: ASYNC110  # a timer sets it
                await asyncio.sleep(REPORTED_AFTER_S)
        await asyncio.sleep(4 * REPORTED_AFTER_S)
        assert len(reports) == expected
        delayed.changed("running")


@pytest.mark.parametrize("state", ["cold", "draining", "evicting", "evicted", "quarantined", "restoring", ""])
async def test_another_change_is_reported_at_once_with_what_has_waited(state: str) -> None:
    """A leader that reads of a lost attempt first would grant it to the same engine again."""
    reports: list[int] = []
    delayed = DelayedReport(lambda: reports.append(1))
    delayed.changed("resident")
    delayed.changed(state)
    assert len(reports) == 1
    await asyncio.sleep(4 * REPORTED_AFTER_S)
    assert len(reports) == 1, "the report had all"
