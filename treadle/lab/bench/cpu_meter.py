"""CPU time of a call. Other load on the machine changes it little, but changes rates."""

from collections.abc import Mapping

from treadle.lab.bench.closed_loop import Round
from treadle.lab.bench.contest import Contestant
from treadle.lab.bench.figures import BenchFigure, figure
from treadle.lab.bench.processes import SANDBOXES, cpu_by_service, used_between

LEAST_US = 1.0
"""Services with a smaller cost are not shown."""


class CpuMeter:
    """CPU time of some processes during a contestant's rounds."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._used: dict[str, float] = {}
        self._calls = 0

    def over(self, contestant: Contestant) -> Contestant:
        """Return the contestant with the meter."""

        async def metered() -> Round:
            before = cpu_by_service(self._pids)
            result = await contestant()
            for name, used in used_between(before, cpu_by_service(self._pids)).items():
                self._used[name] = self._used.get(name, 0.0) + used
            self._calls += result.calls
            return result

        return metered

    def per_call_us(self) -> dict[str, float]:
        """Return the microseconds of CPU per call, the most expensive first; empty before the first round."""
        if not self._calls:
            return {}
        costs = {name: used / self._calls * 1e6 for name, used in self._used.items()}
        return dict(sorted(costs.items(), key=lambda item: -item[1]))

    def figures(self, measurement: str, what: str = "CPU an action costs {}") -> list[BenchFigure]:
        """Return a figure for each process above `LEAST_US`.

        Sandboxes are left out: the kernel reaps the dead children of their interpreters, and their CPU time is lost. An
        answer's ``cpu_s`` has it.
        """
        return [
            figure(f"{measurement}.cpu.{name}", what.format(name), cost, "us")
            for name, cost in self.per_call_us().items()
            if cost >= LEAST_US and name != SANDBOXES
        ]
