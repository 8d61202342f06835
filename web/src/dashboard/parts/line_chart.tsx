// A series over time, with gaps where nothing was measured.

import { greatest, least } from "../../charts/dom.ts";
import { dur } from "../../charts/format.ts";
import { leftMargin, plotWidth } from "../../charts/frame.ts";
import { linePath, linePlot } from "../../charts/lines.ts";
import { lineStyle } from "../../charts/palette.ts";
import { clockTicks, linear, niceTicks, rangeTicks } from "../../charts/scales.ts";
import { sayClock } from "../words.ts";
import { Chart } from "./chart.tsx";

interface LineChartProps {
  label: string;
  unit: string;
  /** Seconds since 1970 of the first value, and between values. */
  from: number;
  step: number;
  values: readonly (number | null)[];
  say(value: number): string;
  /** The axis begins at zero. */
  fromZero?: boolean;
  colour?: number;
  height?: number;
}

export function LineChart({ label, unit, from, step, values, say, fromZero = true, colour = 0, height = 180 }: LineChartProps) {
  const known = values.filter((value) => value !== null);
  if (!known.length) return <p class="soft">{label}: nothing measured yet.</p>;
  const to = from + step * Math.max(1, values.length - 1);
  const draw = (host: HTMLElement) => {
    const width = plotWidth(host);
    const top = greatest(known, fromZero ? 0 : -Infinity);
    const low = fromZero ? 0 : least(known, Infinity);
    const pad = (top - low || Math.abs(top) || 1) * 0.06;
    const yTicks = fromZero ? niceTicks(top + pad, 4) : rangeTicks(low - pad, top + pad, 4);
    const left = leftMargin(yTicks);
    const x = linear(from, to, left, width - 14);
    const y = linear(fromZero ? 0 : low - pad, top + pad, height - 30, 28);
    const points = values.map((value, i): [number, number | null] => [from + i * step, value]);
    const at = (t: number) => {
      const value = values[Math.max(0, Math.min(values.length - 1, Math.round((t - from) / step)))];
      return value === null ? "not measured" : say(value);
    };
    linePlot(host, {
      width,
      height,
      x,
      y,
      xTicks: clockTicks(from, to, (width - left) / 90),
      yTicks,
      yLabel: unit,
      label: `${label}, over the last ${dur(to - from)}: now ${say(known[known.length - 1])}, at least ${say(least(known, Infinity))}, at most ${say(greatest(known, -Infinity))}.`,
      empty: "nothing measured yet",
      head: sayClock,
      curves: [{ name: label, line: lineStyle(colour, ""), path: linePath(points, x, y), at }],
    });
  };
  return <Chart draw={draw} of={values} />;
}
