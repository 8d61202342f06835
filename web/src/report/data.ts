// What the page is given (crates/sim/src/report), and the policies in the order in which the page shows them.

import { lineStyle } from "../charts/palette.ts";
import type { LineStyle } from "../charts/palette.ts";
import type { Point } from "../charts/lines.ts";

export interface Metrics {
  avg_jct_s: number;
  median_jct_s: number;
  p99_jct_s: number;
  avg_wait_s: number;
  makespan_s: number;
  gpu_busy: number;
  goodput: number;
  avg_slowdown: number;
  shared_gpu_time: number;
  preemptions: number;
  restores: number;
  decisions: number;
  active_jobs_max: number;
}

export interface Sharing {
  pairs: [string, string, number][];
  all_pairs: number;
  all_gpu_s: number;
  sub_batches: [number, number][];
  slowdown: Point[];
}

/** Row, start, end, job, lane, lanes. */
export type PlainSegment = [number, number, number, number, number, number];

export interface PlainRun {
  policy: string;
  metrics: Metrics;
  cdf: Point[];
  series: { waiting: number[]; busy: number[]; shared: number[] };
  jct: number[];
  gantt: PlainSegment[];
  sharing: Sharing | null;
}

export interface Pairs {
  classes: string[];
  jobs: number[];
  all_classes: number;
  measured: (number | null)[][];
  believed: (number | null)[][] | null;
}

export interface Report {
  schema: number;
  trace: string;
  jobs: number;
  gpus: number;
  partitions: number;
  lower_bound: { exclusive_s: number; sharing_s: number; tenants_max: number };
  notes: string[];
  runs: PlainRun[];
  series: { from_s: number; to_s: number };
  scatter: { ids: string[]; gpus: number[] };
  gantt: {
    from_s: number;
    to_s: number;
    partition: string;
    partition_gpus: number;
    rows: string[];
    jobs: { id: string; gpus: number; user: string; class: string }[];
  };
  pairs: Pairs | null;
}

export interface Run extends PlainRun {
  /** Place on the page. */
  i: number;
  line: LineStyle;
  /** Whether it put two jobs on one GPU at any time. */
  shares: boolean;
}

/** The policy itself, without its settings. */
const family = (policy: string): string => policy.split(":", 1)[0];

export const isTandem = (run: PlainRun): boolean => family(run.policy) === "tandem";

const lowest = <R extends PlainRun>(runs: readonly R[]): R | null =>
  runs.length ? runs.reduce((a, b) => (b.metrics.avg_jct_s < a.metrics.avg_jct_s ? b : a)) : null;

/** `tandem` in front, the others as they were given; solid lines share GPUs, dashed ones do not. */
export function order(runs: readonly PlainRun[]): Run[] {
  const sorted = [...runs.filter(isTandem), ...runs.filter((run) => !isTandem(run))];
  const used = [0, 0];
  return sorted.map((run, i) => {
    const shares = run.metrics.shared_gpu_time > 0;
    const place = used[shares ? 0 : 1]++;
    // Five colours each; who comes after that is dotted.
    const colour = (shares ? 0 : 5) + (place % 5);
    const dash = place >= 5 ? "2 3" : shares ? "" : "6 3";
    return { ...run, i, shares, line: lineStyle(colour, dash, isTandem(run) ? 2.8 : 1.8) };
  });
}

export interface Standing {
  /** The policy that the page speaks of: `tandem` if it ran, else the one with the lowest mean JCT. */
  hero: Run;
  /** The lowest mean JCT of all. */
  best: Run;
  /** The best of those that do not share, with which the others are compared; none if all share. */
  base: Run | null;
}

export function standing(runs: readonly Run[]): Standing {
  const best = lowest(runs) ?? runs[0];
  const hero = lowest(runs.filter(isTandem)) ?? best;
  return { hero, best, base: lowest(runs.filter((run) => !run.shares)) };
}
