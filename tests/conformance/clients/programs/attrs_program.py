"""The program of every client, for openapi-python-client: grade a batch, follow it, drive a trajectory."""

import json
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

from treadle_client.api.batches import get_batch, get_results
from treadle_client.api.rewards import post_reward, post_rewards
from treadle_client.api.tasks import open_batch, put_task
from treadle_client.api.trajectories import delete_trajectory, post_trajectory, post_trajectory_action
from treadle_client.client import Client
from treadle_client.models import (
    ActionKind,
    BatchOpening,
    EnvBash,
    EnvBashAction,
    EnvBashActionKind,
    EnvironmentSpec,
    EnvWrite,
    EnvWriteAction,
    EnvWriteActionKind,
    ResultLine,
    RewardRequest,
    RewardRequestParams,
    StageTemplate,
    Task,
    TrajectoryRequest,
)
from treadle_client.types import File


def main(url: str, samples: list[dict[str, str]]) -> dict[str, Any]:
    client = Client(base_url=url, timeout=120, raise_on_unexpected_status=True)
    stage = StageTemplate(name="tests", kind=ActionKind.CODE_ASSERTS)
    put_task.sync("attrs", client=client, body=Task(stages=[stage], batch_size=len(samples)))
    batch = open_batch.sync("attrs", client=client, body=BatchOpening(size=len(samples))).id
    requests = [
        RewardRequest(request_id=each.pop("id"), params=RewardRequestParams.from_dict(each)) for each in samples
    ]
    post_reward.sync(client=client, body=requests[0], batch=batch)
    lines = "\n".join(json.dumps(request.to_dict()) for request in requests[1:])
    receipt = post_rewards.sync(client=client, body=File(payload=BytesIO(lines.encode())), batch=batch)
    assert receipt.accepted == len(samples) - 1, receipt
    text = get_results.sync_detailed(batch, client=client, follow=True).content.decode()
    answers = [ResultLine.from_dict(json.loads(line)) for line in text.splitlines()]
    view = get_batch.sync(batch, client=client)
    return {
        "passed": {answer.request_id: answer.passed for answer in answers},
        "state": view.state,
        "answered": view.answered,
        "trajectory": trajectory(client),
    }


def trajectory(client: Client) -> dict[str, Any]:
    request = TrajectoryRequest(environment=EnvironmentSpec(memory_mb=64))
    opened = post_trajectory.sync(client=client, body=request).id
    write = EnvWriteAction(EnvWriteActionKind("env.write"), EnvWrite(path="hello.txt", content="hello"))
    bash = EnvBashAction(EnvBashActionKind("env.bash"), EnvBash(line="cat hello.txt"))
    written = post_trajectory_action.sync(opened, client=client, body=write, wait=60)
    read = post_trajectory_action.sync(opened, client=client, body=bash, wait=60)
    closed = delete_trajectory.sync(opened, client=client)
    return {"written": written.passed, "output": read.output["output"], "state": closed.state}


sys.stdout.write(json.dumps(main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()))))
