// Series over time, with gaps where nothing was measured.

import { greatest, least, sv } from "../../charts/dom.ts";
import { dur } from "../../charts/format.ts";
import { leftMargin, plotWidth } from "../../charts/frame.ts";
import { linePath, linePlot } from "../../charts/lines.ts";
import type { Curve } from "../../charts/lines.ts";
import { lineStyle } from "../../charts/palette.ts";
import { clockTicks, linear, niceTicks, rangeTicks } from "../../charts/scales.ts";
import type { Scale } from "../../charts/scales.ts";
import { sayClock } from "../words.ts";
import { Chart } from "./chart.tsx";

type Values = readonly (number | null)[];

interface LineChartProps {
  label: string;
  unit: string;
  /** Seconds since 1970 of the first value, and between values. */
  from: number;
  step: number;
  values: Values;
  say(value: number): string;
  /** A second series of the same unit, dashed. */
  second?: { label: string; values: Values };
  /** What values should not exceed. */
  limit?: { label: string; value: number } | null;
  /** The axis begins at zero. */
  fromZero?: boolean;
  colour?: number;
  height?: number;
}

const measured = (values: Values): number[] => values.filter((value) => value !== null);

/** The values and the limit in words. */
function describe({ label, step, values, say, limit }: LineChartProps): string {
  const known = measured(values);
  const over = dur(step * Math.max(1, values.length - 1));
  const range = `now ${say(known[known.length - 1])}, at least ${say(least(known, Infinity))}, at most ${say(greatest(known, -Infinity))}`;
  return `${label}, over the last ${over}: ${range}${limit ? `; ${limit.label} ${say(limit.value)}` : ""}.`;
}

function curves({ label, from, step, values, say, second, colour = 0 }: LineChartProps, x: Scale, y: Scale): Curve[] {
  const curve = (name: string, of: Values, dash: "" | "6 3"): Curve => {
    const at = (t: number) => {
      const value = of[Math.max(0, Math.min(of.length - 1, Math.round((t - from) / step)))];
      return value === null || value === undefined ? "not measured" : say(value);
    };
    const points = of.map((value, i): [number, number | null] => [from + i * step, value]);
    return { name, line: lineStyle(colour, dash), path: linePath(points, x, y), at };
  };
  return [curve(label, values, ""), ...(second ? [curve(second.label, second.values, "6 3")] : [])];
}

export function LineChart(props: LineChartProps) {
  const { label, unit, from, step, values, second, limit, fromZero = true, height = 180 } = props;
  const known = [...measured(values), ...measured(second?.values ?? []), ...(limit ? [limit.value] : [])];
  if (!measured(values).length) return <p class="soft">{label}: nothing measured yet.</p>;
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
    const reference = limit
      ? [
          sv("line", { class: "ref", x1: left, x2: width - 14, y1: y(limit.value), y2: y(limit.value), "stroke-dasharray": "2 3" }),
          sv("text", { x: width - 14, y: y(limit.value) + 14, "text-anchor": "end" }, limit.label),
        ]
      : [];
    linePlot(host, {
      width, height, x, y, yTicks, reference,
      xTicks: clockTicks(from, to, (width - left) / 90),
      yLabel: unit,
      label: describe(props),
      empty: "nothing measured yet",
      head: sayClock,
      curves: curves(props, x, y),
    });
  };
  return <Chart draw={draw} of={values} />;
}
