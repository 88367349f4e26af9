"""The program of every client, for openapi-generator's `python`: grade a batch, follow it, drive a trajectory."""

import json
import sys
from pathlib import Path

from treadle_api import (
    ApiClient,
    BatchesApi,
    BatchOpening,
    Configuration,
    EnvBash,
    EnvBashAction,
    EnvironmentSpec,
    EnvWrite,
    EnvWriteAction,
    ResultLine,
    RewardRequest,
    RewardsApi,
    StageTemplate,
    Task,
    TasksApi,
    TrajectoriesApi,
    TrajectoryAction,
    TrajectoryRequest,
)


def main(url: str, samples: list[dict[str, str]]) -> dict[str, object]:
    with ApiClient(Configuration(host=url)) as client:
        tasks, batches, rewards = TasksApi(client), BatchesApi(client), RewardsApi(client)
        stage = StageTemplate(name="tests", kind="code.asserts", units=None)
        tasks.put_task("python", Task(stages=[stage], batch_size=len(samples)))
        batch = tasks.open_batch("python", batch_opening=BatchOpening(size=len(samples))).id
        requests = [RewardRequest(request_id=each.pop("id"), params=each) for each in samples]
        rewards.post_reward(requests[0], batch=batch)
        lines = "\n".join(request.to_json() for request in requests[1:])
        receipt = rewards.post_rewards(lines, batch=batch)
        assert receipt.accepted == len(samples) - 1, receipt
        follow = batches.get_results_without_preload_content(batch, follow=True)
        answers = [ResultLine.from_json(line.decode()) for line in follow]
        view = batches.get_batch(batch)
        return {
            "passed": {answer.request_id: answer.passed for answer in answers if answer is not None},
            "state": view.state,
            "answered": view.answered,
            "trajectory": trajectory(TrajectoriesApi(client)),
        }


def trajectory(api: TrajectoriesApi) -> dict[str, object]:
    opened = api.post_trajectory(TrajectoryRequest(environment=EnvironmentSpec(memory_mb=64)))
    write = EnvWriteAction(kind="env.write", params=EnvWrite(path="hello.txt", content="hello"))
    bash = EnvBashAction(kind="env.bash", params=EnvBash(line="cat hello.txt"))
    written = api.post_trajectory_action(opened.id, TrajectoryAction(write), wait=60)
    read = api.post_trajectory_action(opened.id, TrajectoryAction(bash), wait=60)
    closed = api.delete_trajectory(opened.id)
    return {"written": written.passed, "output": read.output["output"], "state": closed.state}


sys.stdout.write(json.dumps(main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()))))
