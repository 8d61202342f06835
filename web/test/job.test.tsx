// @vitest-environment happy-dom
// The page of a job follows its changes, also those that come together with changes of others.

import { render } from "preact";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { JobChange, JobInfo, JobState } from "../src/api/types.ts";
import { Job } from "../src/dashboard/pages/job.tsx";
import { onDevices, problem, queueIsCut, receive, refresh, waiting } from "../src/dashboard/store.ts";

const TIME = "2026-01-01T00:00:00Z";
let state: JobState = "running";

const info = (): JobInfo => ({
  id: 7, name: "steered", user: "ann", uid: 1000, state, gpus: 1, class: "demo", devices: [0], beside: [], rate: 1, rate_measured: true,
  submit_time: TIME, start_time: TIME, end_time: null, run_s: 5, shared_s: 0, reason: null, exit_code: null, task: null, pid: 1, runs: 1,
  retried: 0, signal: null, share: 1, enforcement: "none", sub_batches: 1, caps: [], slowdown_predicted: null, slowdown_measured: null,
  normalised_throughput: null, done_s: 1, estimate_s: null, memory_peak_bytes: 0, gpu_memory_bytes: null, exclusive: false, max_slowdown: null,
  time_limit_s: null, priority: 0, cpu_s: 0, dependency: null, may_change: true,
});
const ANSWERS: Record<string, () => unknown> = {
  "/v1/jobs/7": () => ({ schema: 1, job: info() }),
  "/v1/jobs/7/decisions": () => ({ schema: 1, decisions: [] }),
};
const series = () => ({ schema: 1, from: TIME, step_s: 1, rate: [], steps_per_s: [], memory_bytes: [], scalars: {} });

const change = (id: number, to: JobState, seq: number): JobChange => ({ id, state: to, seq, time: TIME, devices: [0], submit_time: TIME });
const heading = () => document.querySelector("h2")?.textContent;
const says = (expected: string) => vi.waitUntil(() => heading() === expected);

beforeEach(() => {
  const fetched = (path: string) => Promise.resolve(Response.json((ANSWERS[path] ?? series)()));
  vi.stubGlobal("fetch", vi.fn(fetched));
});
afterEach(() => {
  vi.unstubAllGlobals();
});

it("says that a queue is longer than what is shown, and shows what runs all the same", async () => {
  const page = (jobs: unknown[], next?: number) => ({ schema: 1, jobs, ...(next ? { next_after: next } : {}) });
  ANSWERS["/v1/jobs?state=running%2Cpaused%2Ccompleting&limit=10000"] = () => page([{ ...info(), state: "running" }]);
  ANSWERS["/v1/jobs?state=pending%2Cheld&limit=10000"] = () => page([{ ...info(), id: 9, state: "pending" }], 9);
  ANSWERS["/v1/info"] = () => ({ policy: "fifo", up_s: 1, jobs: {} });
  ANSWERS["/v1/devices"] = () => ({ provider: "fake", devices: [] });
  vi.stubGlobal("fetch", (path: string) => {
    const known = ANSWERS[path] ?? (path.startsWith("/v1/timeline") ? () => ({ placements: [] }) : path.startsWith("/v1/jobs?") ? () => page([]) : null);
    return Promise.resolve(known ? Response.json(known()) : new Response("{}", { status: 404 }));
  });
  await refresh();
  expect(problem.value).toBe(null);
  expect([queueIsCut.value, onDevices.value.length, waiting.value.length]).toEqual([true, 1, 1]);
});

it("shows a change that comes in one batch with a later change of another job", async () => {
  render(<Job id={7} />, document.body);
  await says("Job 7: steered running");
  state = "cancelled";
  // A cancelled job makes room for another one: both are told at once.
  receive("job", change(7, "cancelled", 1));
  receive("job", change(8, "running", 2));
  await says("Job 7: steered cancelled");
  expect(heading()).toContain("cancelled");
});
