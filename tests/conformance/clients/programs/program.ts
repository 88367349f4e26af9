// The program of every client, for openapi-generator's `typescript-fetch`: grade a batch, follow it, drive a trajectory.
import { readFileSync } from "node:fs";
import {
  BatchesApi, Configuration, ResultLineFromJSON, RewardRequestToJSON, RewardsApi, TasksApi, TrajectoriesApi,
  type ResultLine, type RewardRequest,
} from "./index.js";

async function follow(batches: BatchesApi, batch: string): Promise<ResultLine[]> {
  const { raw } = await batches.getResultsRaw({ batch, follow: true });
  const answers: ResultLine[] = [];
  let rest = "";
  const decoder = new TextDecoder();
  const reader = raw.body!.getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const lines = (rest + decoder.decode(part.value, { stream: true })).split("\n");
    rest = lines.pop()!;
    for (const line of lines) answers.push(ResultLineFromJSON(JSON.parse(line)));
  }
  return answers;
}

async function drive(api: TrajectoriesApi) {
  const { id: trajectory } = await api.postTrajectory({ trajectoryRequest: { environment: { memoryMb: 64 } } });
  const write = { kind: "env.write", params: { path: "hello.txt", content: "hello" } } as const;
  const written = await api.postTrajectoryAction({ trajectory, wait: 60, trajectoryAction: write });
  const bash = { kind: "env.bash", params: { line: "cat hello.txt" } } as const;
  const read = await api.postTrajectoryAction({ trajectory, wait: 60, trajectoryAction: bash });
  const closed = await api.deleteTrajectory({ trajectory });
  return { written: written.passed, output: read.output.output, state: closed.state };
}

async function main(basePath: string, samples: Record<string, string>[]) {
  const configuration = new Configuration({ basePath });
  const tasks = new TasksApi(configuration);
  const batches = new BatchesApi(configuration);
  const rewards = new RewardsApi(configuration);
  const task = { stages: [{ name: "tests", kind: "code.asserts" as const }], batchSize: samples.length };
  await tasks.putTask({ task: "typescript", body: task });
  const { id: batch } = await tasks.openBatch({ task: "typescript", batchOpening: { size: samples.length } });
  const requests = samples.map(({ id, ...params }): RewardRequest => ({ requestId: id, params }));
  await rewards.postReward({ batch, rewardRequest: requests[0] });
  const body = requests.slice(1).map((each) => JSON.stringify(RewardRequestToJSON(each))).join("\n");
  const receipt = await rewards.postRewards({ batch, body });
  if (receipt.accepted !== samples.length - 1) throw new Error(JSON.stringify(receipt));
  const answers = await follow(batches, batch);
  const view = await batches.getBatch({ batch });
  return {
    passed: Object.fromEntries(answers.map((answer) => [answer.requestId, answer.passed])),
    state: view.state,
    answered: view.answered,
    trajectory: await drive(new TrajectoriesApi(configuration)),
  };
}

const [url, file] = process.argv.slice(2);
console.log(JSON.stringify(await main(url, JSON.parse(readFileSync(file, "utf8")))));
