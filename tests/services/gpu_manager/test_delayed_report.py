"""One report for changes that come together, and another one for later changes."""

from __future__ import annotations

import asyncio

from services.gpu_manager.delayed_report import REPORTED_AFTER_S, DelayedReport


async def test_changes_that_come_together_are_one_report_and_later_ones_another() -> None:
    reports: list[int] = []
    delayed = DelayedReport(lambda: reports.append(1))
    for _ in range(3):
        delayed.changed()
    assert not reports, "calls that wait for an engine leave first"
    for expected in (1, 2):
        async with asyncio.timeout(20):
            while len(reports) < expected:  # noqa: ASYNC110  # a timer sets it
                await asyncio.sleep(REPORTED_AFTER_S)
        await asyncio.sleep(4 * REPORTED_AFTER_S)
        assert len(reports) == expected
        delayed.changed()
