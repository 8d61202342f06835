import { describe, expect, it } from "vitest";
import { Placements, forecastPlacements, segmentsOf } from "../src/dashboard/stays.ts";
import type { Placement } from "../src/dashboard/stays.ts";
import { rowsOf } from "../src/dashboard/pages/gpus.tsx";
import type { DeviceInfo, PlacementInfo } from "../src/api/types.ts";

const placement = (job: number, from: number, to: number | null, devices = [0]): Placement => ({
  job, name: `j${job}`, user: "", class: "", devices, from, to, rate: null, measured: false, beside: [],
});
const info = (seq: number, job: number, from: number, to: number | null): PlacementInfo => ({
  seq, job, name: `j${job}`, user: "", class: "", devices: [0], beside: [], rate: 1, rate_measured: true,
  from: new Date(from * 1000).toISOString(), to: to === null ? null : new Date(to * 1000).toISOString(),
});
const rows = new Map([[0, 0], [1, 1]]);
const shape = (segments: ReturnType<typeof segmentsOf>) =>
  segments.map((s) => [s.key, s.row, s.from, s.to, s.lane, s.lanes]).sort((a, b) => a[2] - b[2] || a[0] - b[0]);

describe("lanes", () => {
  it("are cut where tenants come and go", () => {
    const segments = segmentsOf([placement(1, 0, 10), placement(2, 4, 8)], [], rows, 20);
    expect(shape(segments)).toEqual([
      [1, 0, 0, 4, 0, 1],
      [1, 0, 4, 8, 0, 2],
      [2, 0, 4, 8, 1, 2],
      [1, 0, 8, 10, 0, 1],
    ]);
  });
  it("show what lasts up to now, and the forecast from there", () => {
    const segments = segmentsOf([placement(1, 0, null)], [placement(1, 5, 30), placement(2, 30, 40)], rows, 20);
    expect(shape(segments)).toEqual([
      [1, 0, 0, 20, 0, 1],
      [1, 0, 20, 30, 0, 1],
      [2, 0, 30, 40, 0, 1],
    ]);
    expect(segments.filter((s) => s.isForecast)).toHaveLength(2);
  });
  it("span all GPUs of a job and leave out those that are not shown", () => {
    expect(shape(segmentsOf([placement(1, 0, 5, [0, 1, 7])], [], rows, 9)).map((s) => s[1]).sort()).toEqual([0, 1]);
  });
  it("of a thousand placements are made in a moment", () => {
    const many = Array.from({ length: 5000 }, (_, i) => placement(i, i % 700, (i % 700) + 40));
    const started = performance.now();
    expect(segmentsOf(many.slice(0, 1000), [], rows, 2000).length).toBeGreaterThan(1000);
    expect(performance.now() - started).toBeLessThan(2000);
  });
});

describe("kept placements", () => {
  it("are bounded by age and by number, and what lasts stays", () => {
    const kept = new Placements(10, 100);
    kept.put(info(1, 1, 0, null));
    for (let seq = 2; seq < 100; seq++) kept.put(info(seq, seq, seq * 10, seq * 10 + 5));
    kept.prune(1000);
    expect(kept.size).toBe(10);
    expect(kept.list().map((p) => p.job)).toContain(1);
    expect(kept.list().map((p) => p.job)).toContain(99);
    kept.prune(5000);
    expect(kept.list().map((p) => p.job)).toEqual([1]);
  });
  it("take a new rate while they last", () => {
    const kept = new Placements(10, 100);
    kept.put(info(1, 7, 0, null));
    kept.setRate(7, 0.5, true);
    expect(kept.current().map((p) => p.rate)).toEqual([0.5]);
    kept.put(info(1, 7, 0, 9));
    kept.setRate(7, 0.1, true);
    expect(kept.list()[0].rate).toBe(1);
    expect(kept.current()).toEqual([]);
  });
});

it("forecasts are placed from the instant at which they were made", () => {
  const made = forecastPlacements([{ job: 3, devices: [1], from_s: 5, to_s: 9 }], 100, () => ({ name: "n", user: "u", class: "c" }));
  expect(made[0]).toMatchObject({ job: 3, from: 105, to: 109, name: "n" });
});

describe("rows", () => {
  const device = (index: number, node: string): DeviceInfo => ({
    index, node, name: "", kind: "", memory_bytes: 0, state: "up", jobs: [], measured: false, normalised_throughput: 0,
  });
  const cluster = [device(0, "a"), device(1, "b"), device(2, "a")];
  it("are the GPUs, those of a node together", () => {
    const { rows, rowOf } = rowsOf(cluster, "gpu");
    expect(rows.map((row) => row.label)).toEqual(["a 0", "a 1", "b 0"]);
    expect([0, 1, 2].map((index) => rowOf.get(index))).toEqual([0, 2, 1]);
    expect(rowsOf([device(0, ""), device(1, "")], "gpu").rows.map((row) => row.label)).toEqual(["GPU 0", "GPU 1"]);
  });
  it("are the nodes, in which a gang is one tenant", () => {
    const { rows, rowOf } = rowsOf(cluster, "node");
    expect(rows.map((row) => row.label)).toEqual(["a", "b"]);
    const segments = segmentsOf([placement(1, 0, 5, [0, 1, 2]), placement(2, 0, 5, [1])], [], rowOf, 9);
    expect(shape(segments).map(([job, row, , , lane, lanes]) => [job, row, lane, lanes]).sort()).toEqual([[1, 0, 0, 1], [1, 1, 0, 2], [2, 1, 1, 2]]);
  });
});
