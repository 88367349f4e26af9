"""The run of `treadle demo --agent`: one trajectory of an agent, from its first model call to rows with a reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from shared.runtime.units import Seconds
from treadle.client.answers import Answer, RecordedCall, TrainingRow
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.requests import EnvironmentSpec, TrajectoryRequest

FILE: Final = "mean.py"
BROKEN: Final = '''def mean(values):
    """Arithmetic mean; 0.0 of nothing."""
    return sum(values) / (len(values) - 1)
'''
ISSUE: Final = "mean([1, 2, 3]) in mean.py is 3.0. It should be 2.0, and mean([]) should be 0.0. Repair mean.py."
TESTS: Final = "assert mean([1, 2, 3]) == 2.0\nassert mean([5]) == 5.0\nassert mean([]) == 0.0\n"
"""They are in no environment: the agent does not see them."""
SCRIPT: Final = (
    f"cat {FILE}",
    "python3 -c 'from mean import mean; print(mean([1, 2, 3]))'",
    f"sed -i 's|return .*|return sum(values) / len(values) if values else 0.0|' {FILE}",
    "python3 -c 'from mean import mean; print(mean([1, 2, 3]), mean([]))'",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
)
"""Commands of the scripted model. mini-swe-agent ends at the last one."""
VARIABLES: Final = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""Settings of mini-swe-agent: it asks nothing, and reads no prices from the network."""
MEMORY_MB: Final = 1024
LIMIT_S: Final[Seconds] = 600.0


class AgentFailed(Exception):
    """The action of the agent has no result."""


class AgentMissing(AgentFailed):
    """The agent cannot be executed in the sandbox, because its files are not visible there."""


class AgentDemonstration(msgspec.Struct, frozen=True):
    """One trajectory: what its agent did, called and achieved."""

    trajectory: str
    node: str
    agent: Answer
    """Its run: one action."""
    file: str
    """What it left of the file."""
    graded: Answer
    """Its grading in a fresh sandbox, in the same trace."""
    calls: list[RecordedCall]
    rows: list[TrainingRow]
    trace: dict[str, Any]
    """All of this in time, in OpenTelemetry's format."""

    @property
    def reward(self) -> float | None:
        return self.graded.score

    @property
    def succeeded(self) -> bool:
        """True if the repair passes, and every call is in a row."""
        recorded = {call for row in self.rows for call in row.calls}
        return self.graded.passed is True and bool(self.calls) and {call.call for call in self.calls} <= recorded

    def training_rows(self) -> list[dict[str, Any]]:
        """Return the rows with the reward of the trajectory."""
        return [{"reward": self.reward, **msgspec.to_builtins(row)} for row in self.rows]


async def demonstrate_agent(
    client: AsyncTreadle, mini: Path, model: str, entered: Callable[[str], None]
) -> AgentDemonstration:
    """Let mini-swe-agent repair a function in a sandbox without network.

    Args:
        client: of a mesh whose router has an engine.
        mini: the agent's program on the node. Its files must be visible in sandboxes (`CPU_MANAGER_VISIBLE_PATHS`).
        model: the engine's model.
        entered: called with a title when a part begins.
    Raises:
        AgentFailed: the agent has no result, for example because it met its time limit.
        AgentMissing: it is not visible in the sandbox.
        TreadleError: the mesh rejects a call, or was away for too long.
    """
    environment = EnvironmentSpec(model=True, memory_mb=MEMORY_MB)
    request = TrajectoryRequest(environment=environment, record="tokens", task="demo-agent")
    trajectory = (await client.trajectories.open(request)).id
    try:
        entered("The agent acts in its environment")
        await _act(client, trajectory, "env.write", {"path": FILE, "content": BROKEN})
        agent = await _act(client, trajectory, "env.exec", {"argv": _command(mini, model), "env": VARIABLES})
        _check(agent, mini)
        file = str((await _act(client, trajectory, "env.read", {"path": FILE})).output.get("content", ""))
        entered("Its repair is graded in a fresh sandbox")
        graded = await client.run("code.asserts", {"code": file, "tests": TESTS}, trajectory=trajectory)
        entered("Its tokens are read")
        rows, calls = await client.trajectories.rows(trajectory), await client.trajectories.model_calls(trajectory)
        node = (await client.trajectories.view(trajectory)).node or ""
    finally:
        await client.trajectories.close(trajectory)
    trace = await client.trajectories.trace(trajectory)
    return AgentDemonstration(trajectory, node, agent, file, graded, calls, rows, trace)


async def _act(client: AsyncTreadle, trajectory: str, kind: Any, params: Mapping[str, Any]) -> Answer:
    return await client.trajectories.act(trajectory, kind, params, timeout_s=LIMIT_S)


def _command(mini: Path, model: str) -> list[str]:
    return [str(mini), "--model", f"openai/{model}", "--yolo", "--exit-immediately", "--task", ISSUE]


def _check(agent: Answer, mini: Path) -> None:
    if agent.ended != "ok":
        raise AgentFailed(f"the agent has no result: {agent.ended}: {agent.reason}")
    if agent.output.get("error"):
        raise AgentMissing(f"{mini} cannot be executed in the sandbox: {agent.output['error']}")
