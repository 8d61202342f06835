import { describe, expect, it } from "vitest";
import { NB } from "../src/charts/format.ts";
import { order, standing } from "../src/report/data.ts";
import type { PlainRun } from "../src/report/data.ts";
import { headline } from "../src/report/headline.ts";
import { medianWords } from "../src/report/scatter.ts";

function run(policy: string, mean: number, shared = 0): PlainRun {
  const metrics = {
    avg_jct_s: mean, median_jct_s: 1, p99_jct_s: 1, avg_wait_s: 1, makespan_s: 1, gpu_busy: 1, goodput: 1, avg_slowdown: 1,
    shared_gpu_time: shared, preemptions: 0, restores: 0, decisions: 1, active_jobs_max: 1,
  };
  return { policy, metrics, cdf: [], series: { waiting: [], busy: [], shared: [] }, jct: [], gantt: [], sharing: null };
}

function sentence(...runs: PlainRun[]): string {
  const ordered = order(runs);
  const words = headline(ordered, standing(ordered));
  return words.map((word) => (typeof word === "string" ? word : word.name)).join("").replaceAll(NB, " ");
}

describe("the headline", () => {
  it("compares tandem with the best policy that does not share, not with the first", () => {
    expect(sentence(run("fifo", 5000), run("srsf", 200), run("gshare", 150, 0.2), run("tandem:slice_s=60", 100, 0.1))).toBe(
      "tandem:slice_s=60 has a mean job completion time of 1 min 40 s, 50.0 % less than srsf, the best policy that does not share GPUs (3 min 20 s).",
    );
  });
  it("says so when tandem is worse, and who is best", () => {
    expect(sentence(run("srsf", 80), run("gshare", 50, 0.2), run("tandem", 100, 0.1))).toBe(
      "tandem has a mean job completion time of 1 min 40 s, 25.0 % more than srsf, the only policy that does not share GPUs (1 min 20 s). The lowest is that of gshare, 50 s.",
    );
  });
  it("takes the next best where nobody does without sharing, or all do", () => {
    expect(sentence(run("gshare", 50, 0.2), run("lucid", 100, 0.1))).toContain("50.0 % less than lucid, the next best (1 min 40 s).");
    expect(sentence(run("fifo", 100), run("sjf", 99.99))).toContain("less than 0.1 % less than fifo, the next best");
  });
  it("has words for one policy and for equal ones", () => {
    expect(sentence(run("fifo", 100))).toBe("Under fifo a job takes 1 min 40 s on average, from submission to completion.");
    expect(sentence(run("fifo", 100), run("sjf", 100))).toBe("All 2 policies have the same mean job completion time, 1 min 40 s.");
    expect(sentence(run("fifo", 0), run("sjf", 1))).not.toContain("Infinity");
  });
});

it("tandem stands in front and ten policies have ten looks", () => {
  const names = ["fifo", "sjf", "srtf", "srsf", "tiresias", "sjf-ffs", "sjf-bsbf", "gshare", "lucid", "tandem"];
  const runs = order(names.map((name, i) => run(name, 100 - i, i < 5 ? 0 : 0.1)));
  expect(runs[0].policy).toBe("tandem");
  expect(runs.slice(1).map((r) => r.policy)).toEqual(names.slice(0, 9));
  expect(new Set(runs.map((r) => r.line.colour)).size).toBe(10);
  expect(runs.filter((r) => r.line.dash).map((r) => r.policy)).toEqual(names.slice(0, 5));
});

it("no ratio of two policies is said to be 0.00", () => {
  expect(medianWords(0.0004)).toBe("Half of the jobs are at least 2,500 times as fast under B as under A.");
  expect(medianWords(1)).toBe("Half of the jobs take at most as long under B as under A.");
  expect(medianWords(1.5)).toBe("Half of the jobs take at least 1.50 times as long under B as under A.");
});
