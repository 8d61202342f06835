// Queue length and utilisation over time.

import { clamp, greatest, sv } from "../charts/dom.ts";
import { moment, num, pct, short } from "../charts/format.ts";
import { addCursor, drawAxes, leftMargin, mount, plotWidth } from "../charts/frame.ts";
import { binAt, linePlot, stepPath } from "../charts/lines.ts";
import { swatch } from "../charts/palette.ts";
import { linear, niceTicks, timeTicks } from "../charts/scales.ts";
import type { Scale, Tick } from "../charts/scales.ts";
import type { Run } from "./data.ts";
import type { Page } from "./page.ts";

const AXIS = "Time since the first submission";
const EMPTY = "all policies are hidden";

const bounds = (page: Page): readonly [number, number] => {
  const { from_s, to_s } = page.data.series;
  return [from_s, Math.max(to_s, from_s + 1e-6)];
};
const since = (t: number, to: number): string => moment(t, to, 60) + " after the first submission";

export function addQueue(page: Page): void {
  const id = "chart-queue";
  const [from, to] = bounds(page);
  page.addLegend(id);
  page.add(() => {
    const host = page.plot(id);
    const width = plotWidth(host);
    const height = width < 520 ? 260 : 320;
    const runs = page.shown();
    const top = (runs.reduce((most, run) => greatest(run.series.waiting, most), 0) || 1) * 1.04;
    const yTicks = niceTicks(top, 5);
    const left = leftMargin(yTicks);
    const x = linear(from, to, left, width - 14);
    const y = linear(0, top, height - 48, 28);
    const most = runs.map((run) => `${run.policy}: at most ${num(greatest(run.series.waiting, 0), 1)}`);
    linePlot(host, {
      width, height, x, y, yTicks,
      xTicks: timeTicks(from, to, (width - left) / 80),
      xLabel: AXIS,
      yLabel: "Waiting (jobs)",
      label: "Mean number of waiting jobs over time. " + most.join("; "),
      empty: EMPTY,
      head: (t) => since(t, to),
      curves: runs.map((run) => ({
        name: run.policy,
        line: { ...run.line, width: run.line.width - 0.3 },
        path: stepPath(run.series.waiting, from, to, x, y),
        at: (t) => num(binAt(run.series.waiting, from, to, t), 1) + " waiting",
      })),
    });
  });
}

const [GAP, PANEL, HEAD, FOOT, LEFT] = [34, 96, 30, 52, 48];
const HALVES: Tick[] = [0, 0.5, 1].map((part) => [part, pct(part, 0)]);

/** One small panel per policy: two overlaid series for every policy in one picture could not be told apart. */
export function addUtilisation(page: Page): void {
  const id = "chart-util";
  const [from, to] = bounds(page);
  page.addLegend(id);
  page.add(() => {
    const host = page.plot(id);
    const width = plotWidth(host);
    const runs = page.shown();
    const columns = width >= 720 && runs.length > 1 ? 2 : 1;
    const panel = (width - (columns - 1) * GAP) / columns;
    const rows = Math.max(1, Math.ceil(runs.length / columns));
    const height = 22 + rows * (PANEL + HEAD) + FOOT;
    const says = runs.map((run) => `${run.policy}: ${pct(run.metrics.gpu_busy)} busy, ${pct(run.metrics.shared_gpu_time)} shared`);
    const svg = mount(host, width, height, "GPUs busy and GPUs shared over time, in per cent of all GPUs. " + says.join("; "));
    svg.append(sv("text", { x: 0, y: 12 }, "GPUs (% of all)"));
    if (!runs.length) {
      svg.append(sv("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, EMPTY));
      return;
    }
    const axis = (column: number): Scale => {
      const start = column * (panel + GAP);
      return linear(from, to, start + LEFT, start + panel - (column === columns - 1 ? 14 : 0));
    };
    const xs = Array.from({ length: columns }, (_, column) => axis(column));
    const lines = runs.map((run, k): [SVGLineElement, Scale] => {
      const x = xs[k % columns];
      const top = 22 + Math.floor(k / columns) * (PANEL + HEAD) + HEAD - 6;
      const isLowest = k + columns >= runs.length;
      drawPanel(svg, run, { x, y: linear(0, 1, top + PANEL, top), isLowest, room: (panel - LEFT) / 80, from, to });
      svg.append(sv("text", { class: "name", x: x.range[0], y: top - 7 }, short(run.policy, (panel - LEFT) / 8.8)));
      return [svg.appendChild(sv("line", { class: "cursor", y1: top, y2: top + PANEL })), x];
    });
    addCursor(svg, {
      low: xs[0].range[0],
      high: xs[columns - 1].range[1],
      keyHigh: xs[0].range[1], // keys walk along the first panel only
      at: (px) => {
        const t = clamp((columns > 1 && px > xs[0].range[1] ? xs[1] : xs[0]).invert(px), from, to);
        for (const [line, x] of lines) {
          line.setAttribute("x1", String(x(t)));
          line.setAttribute("x2", String(x(t)));
          line.style.visibility = "visible";
        }
        const value = ({ series }: Run) =>
          `${pct(binAt(series.busy, from, to, t), 0)} busy, ${pct(binAt(series.shared, from, to, t), 0)} shared`;
        const rows = runs.map((run) => ({ mark: () => swatch(run.line), name: run.policy, value: value(run) }));
        return { head: since(t, to), rows };
      },
      hide: () => {
        for (const [line] of lines) line.style.visibility = "";
      },
    });
  });
}

interface Panel {
  x: Scale;
  y: Scale;
  isLowest: boolean;
  room: number;
  from: number;
  to: number;
}

function drawPanel(svg: SVGSVGElement, { series, line }: Run, { x, y, isLowest, room, from, to }: Panel): void {
  const ticks = timeTicks(from, to, room);
  const xTicks = isLowest ? ticks : ticks.map(([t]): Tick => [t, ""]);
  drawAxes(svg, { x, y, xTicks, yTicks: HALVES, xLabel: isLowest ? AXIS : "" });
  if (series.shared.some((part) => part > 0)) {
    const style = { fill: line.colour, "fill-opacity": 0.3 };
    svg.append(sv("path", { d: stepPath(series.shared, from, to, x, y, true), style }));
  }
  const style = { stroke: line.colour, "stroke-width": 1.4 };
  svg.append(sv("path", { class: "ln", d: stepPath(series.busy, from, to, x, y), style }));
}
