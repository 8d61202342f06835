// How long jobs take, and what sharing costs those that share.

import { cdfAt, cdfPath, medianOf } from "../charts/cdf.ts";
import { el, greatest, least, sv } from "../charts/dom.ts";
import { dur, num, pct } from "../charts/format.ts";
import { plotWidth } from "../charts/frame.ts";
import { linePlot } from "../charts/lines.ts";
import { swatch } from "../charts/palette.ts";
import { linear, logDomain, logTicks, logarithmic } from "../charts/scales.ts";
import type { Scale, Tick } from "../charts/scales.ts";
import { find } from "./page.ts";
import type { Page } from "./page.ts";

const PARTS: Tick[] = [0, 0.25, 0.5, 0.75, 1].map((part) => [part, pct(part, 0)]);
const EMPTY = "all policies are hidden";

export function addCompletionTimes(page: Page): void {
  const id = "chart-cdf";
  page.addLegend(id);
  page.add(() => {
    const host = page.plot(id);
    const width = plotWidth(host);
    const height = width < 520 ? 300 : 400;
    const runs = page.shown();
    const { low, high, cut } = logDomain(runs.map((run) => run.cdf.map(([t]) => t)));
    const x = logarithmic(low, high, 48, width - 14);
    const y = linear(0, 1, height - 48, 28);
    const medians = runs.map((run) => `${run.policy}: median ${dur(run.metrics.median_jct_s)}`);
    linePlot(host, {
      width, height, x, y,
      xTicks: logTicks(x, 52),
      yTicks: PARTS,
      xLabel: "Job completion time (log scale)",
      yLabel: "Jobs completed (%)",
      label: "Cumulative distribution of job completion time, logarithmic time axis. " + medians.join("; "),
      empty: EMPTY,
      head: (t) => "within " + dur(t),
      curves: runs.map((run) => ({
        name: run.policy,
        line: run.line,
        path: cdfPath(run.cdf, x, y),
        at: (t) => pct(cdfAt(run.cdf, t)),
      })),
    });
    find(`#${id} .foot`).textContent = cut ? "Jobs of less than one second are drawn at one second." : "";
  });
}

const SLOWDOWN_TICKS = [1, 2, 10, 100, 1000, 5, 1.5, 0.5, 20, 50, 1.2, 3, 0.1, 200, 500];

function slowdownTicks(x: Scale): Tick[] {
  const [low, high] = x.domain;
  const kept: number[] = [];
  for (const tick of SLOWDOWN_TICKS) {
    const fits = kept.every((other) => Math.abs(x(other) - x(tick)) > 34);
    if (tick >= low && tick <= high && fits) kept.push(tick);
  }
  return kept.map((tick) => [tick, String(tick)]);
}

export function addSlowdowns(page: Page): void {
  const id = "chart-slowdown";
  const runs = page.runs.flatMap((run) => (run.sharing ? [{ ...run, slowdown: run.sharing.slowdown }] : []));
  if (!runs.length) return;
  find("#" + id).hidden = false;
  find(`#${id} .legend`).append(...runs.map((run) => el("span", { class: "key" }, swatch(run.line), run.policy)));
  const all = runs.flatMap((run) => run.slowdown.map(([value]) => value));
  const [low, high] = [Math.min(1, least(all, 1)) / 1.05, Math.max(1.5, greatest(all, 1)) * 1.02];
  const medians = runs.map((run) => `${run.policy}: median ${num(medianOf(run.slowdown) ?? 1, 2)}`);
  page.add(() => {
    const host = page.plot(id);
    const width = plotWidth(host);
    const height = width < 520 ? 260 : 320;
    const x = logarithmic(low, high, 48, width - 14);
    const y = linear(0, 1, height - 48, 28);
    linePlot(host, {
      width, height, x, y,
      xTicks: slowdownTicks(x),
      yTicks: PARTS,
      xLabel: "Slow-down (log scale)",
      yLabel: "Jobs that shared (%)",
      label: "Cumulative distribution of slow-down, logarithmic axis. " + medians.join("; "),
      empty: EMPTY,
      reference: [sv("line", { class: "ref", x1: x(1), x2: x(1), y1: y(0), y2: y(1) })],
      head: (value) => "slow-down of at most " + num(value, 2),
      curves: runs.map((run) => ({
        name: run.policy,
        line: run.line,
        path: cdfPath(run.slowdown, x, y),
        at: (value) => pct(cdfAt(run.slowdown, value)),
      })),
    });
  });
}
