"""CPU time a call costs. It hardly moves when others use the machine, where rates do."""

from collections.abc import Mapping

from treadle.lab.bench.closed_loop import Round
from treadle.lab.bench.contest import Contestant
from treadle.lab.bench.figures import BenchFigure, figure
from treadle.lab.bench.processes import SANDBOXES, cpu_by_service, used_between

LEAST_US = 1.0
"""Services that cost an action less are not worth a line."""


class CpuMeter:
    """CPU time of some processes while a contestant plays, summed over its rounds."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._used: dict[str, float] = {}
        self._calls = 0

    def over(self, contestant: Contestant) -> Contestant:
        """The contestant, metered."""

        async def metered() -> Round:
            before = cpu_by_service(self._pids)
            result = await contestant()
            for name, used in used_between(before, cpu_by_service(self._pids)).items():
                self._used[name] = self._used.get(name, 0.0) + used
            self._calls += result.calls
            return result

        return metered

    def per_call_us(self) -> dict[str, float]:
        """Microseconds of CPU a call, dearest first; empty while nothing was played."""
        if not self._calls:
            return {}
        costs = {name: used / self._calls * 1e6 for name, used in self._used.items()}
        return dict(sorted(costs.items(), key=lambda item: -item[1]))

    def figures(self, measurement: str, what: str = "CPU an action costs {}") -> list[BenchFigure]:
        """A figure for each process that is worth a line.

        Not for the sandboxes: their interpreters leave their dead children to the kernel, which forgets what those
        used. An answer's ``cpu_s`` is the truth about them.
        """
        return [
            figure(f"{measurement}.cpu.{name}", what.format(name), cost, "us")
            for name, cost in self.per_call_us().items()
            if cost >= LEAST_US and name != SANDBOXES
        ]
