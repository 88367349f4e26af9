// The program of every client, for openapi-typescript and openapi-fetch: grade a batch, follow it, drive a trajectory.
import { readFileSync } from "node:fs";
import createClient from "openapi-fetch";
import type { components, paths } from "./treadle.js";

type Schemas = components["schemas"];

const [url, file] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl: url });
const samples: Record<string, string>[] = JSON.parse(readFileSync(file, "utf8"));

function must<T>({ data, error }: { data?: T; error?: unknown }): T {
  if (data === undefined) throw new Error(JSON.stringify(error));
  return data;
}

async function grade() {
  const size = samples.length;
  const task: Schemas["Task"] = { stages: [{ name: "tests", kind: "code.asserts" }], batch_size: size };
  must(await client.PUT("/v1/tasks/{task}", { params: { path: { task: "fetch" } }, body: task }));
  const opening = { params: { path: { task: "fetch" } }, body: { size } };
  const { id: batch } = must(await client.POST("/v1/tasks/{task}/batches", opening));
  const requests = samples.map(({ id, ...params }): Schemas["RewardRequest"] => ({ request_id: id, params }));
  must(await client.POST("/v1/rewards", { params: { query: { batch } }, body: requests[0] }));
  const receipt = must(await client.POST("/v1/rewards/bulk", {
    params: { query: { batch } },
    body: requests.slice(1).map((each) => JSON.stringify(each)).join("\n"),
    bodySerializer: (text) => text,
    headers: { "content-type": "application/x-ndjson" },
  }));
  if (receipt.accepted !== size - 1) throw new Error(JSON.stringify(receipt));
  const results = { params: { path: { batch }, query: { follow: true } }, parseAs: "text" } as const;
  const text = must(await client.GET("/v1/batches/{batch}/results", results));
  const answers = text.trim().split("\n").map((line): Schemas["ResultLine"] => JSON.parse(line));
  const view = must(await client.GET("/v1/batches/{batch}", { params: { path: { batch } } }));
  const passed = Object.fromEntries(answers.map((answer) => [answer.request_id, answer.passed]));
  return { passed, state: view.state, answered: view.answered };
}

async function drive() {
  const opened = must(await client.POST("/v1/trajectories", { body: { environment: { memory_mb: 64 } } }));
  const path = { trajectory: opened.id };
  const act = async (body: Schemas["TrajectoryAction"]) =>
    must(await client.POST("/v1/trajectories/{trajectory}/actions", { params: { path, query: { wait: 60 } }, body }));
  const written = await act({ kind: "env.write", params: { path: "hello.txt", content: "hello" } });
  const read = await act({ kind: "env.bash", params: { line: "cat hello.txt" } });
  const closed = must(await client.DELETE("/v1/trajectories/{trajectory}", { params: { path } }));
  return { written: written.passed, output: (read.output as { output: string }).output, state: closed.state };
}

console.log(JSON.stringify({ ...(await grade()), trajectory: await drive() }));
