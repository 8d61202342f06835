// Lines over a common horizontal axis: distributions and series.

import { sv } from "./dom.ts";
import { addCursor, drawAxes, mount } from "./frame.ts";
import type { Axes } from "./frame.ts";
import { stroke, swatch } from "./palette.ts";
import type { LineStyle } from "./palette.ts";
import type { Scale } from "./scales.ts";

export interface Curve {
  name: string;
  line: LineStyle;
  /** The path in units of the picture. */
  path: string;
  /** What the curve says at a value of the horizontal axis. */
  at(x: number): string;
}

export interface LinePlot extends Axes {
  width: number;
  height: number;
  /** For those who do not see it. */
  label: string;
  curves: readonly Curve[];
  /** What stands where there is nothing to draw. */
  empty: string;
  /** Head of the tooltip at a value of the horizontal axis. */
  head(x: number): string;
  /** Drawn under the curves. */
  reference?: readonly SVGElement[];
}

export function linePlot(host: HTMLElement, plot: LinePlot): void {
  const { width, height, x, y, curves } = plot;
  const svg = mount(host, width, height, plot.label);
  drawAxes(svg, plot);
  svg.append(...(plot.reference ?? []));
  // The first curve is drawn last, over the others.
  for (const curve of curves.toReversed()) svg.append(sv("path", { class: "ln", d: curve.path, style: stroke(curve.line) }));
  if (!curves.length) svg.append(sv("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, plot.empty));
  const line = svg.appendChild(sv("line", { class: "cursor", y1: y.range[0], y2: y.range[1] }));
  addCursor(svg, {
    low: x.range[0],
    high: x.range[1],
    at: (px) => {
      line.setAttribute("x1", String(px));
      line.setAttribute("x2", String(px));
      line.style.visibility = "visible";
      if (!curves.length) return null;
      const value = x.invert(px);
      const rows = curves.map(({ name, line: style, at }) => ({ mark: () => swatch(style), name, value: at(value) }));
      return { head: plot.head(value), rows };
    },
    hide: () => {
      line.style.visibility = "";
    },
  });
}

/** Means over equal bins are drawn as steps: a slanted line would invent values between them. */
export function stepPath(values: readonly number[], from: number, to: number, x: Scale, y: Scale, close = false): string {
  const n = values.length;
  if (!n) return "";
  const edge = (k: number) => x(from + ((to - from) * k) / n).toFixed(1);
  const floor = y(0).toFixed(1);
  let path = close ? `M${edge(0)},${floor}V` : `M${edge(0)},`;
  values.forEach((value, k) => {
    path += (k ? "V" : "") + y(value).toFixed(1) + "H" + edge(k + 1);
  });
  return close ? path + `V${floor}Z` : path;
}

/** The value of a bin at an instant. */
export function binAt(values: readonly number[], from: number, to: number, t: number): number {
  if (!values.length) return 0;
  const bin = Math.floor(((t - from) / (to - from)) * values.length);
  return values[Math.max(0, Math.min(values.length - 1, bin))];
}

export type Point = readonly [x: number, y: number];

/** A line through points; a gap where a value is missing. */
export function linePath(points: readonly (readonly [x: number, y: number | null])[], x: Scale, y: Scale): string {
  let path = "";
  let pen = false;
  for (const [at, value] of points) {
    if (value === null) {
      pen = false;
      continue;
    }
    path += `${pen ? "L" : "M"}${x(at).toFixed(1)},${y(value).toFixed(1)}`;
    pen = true;
  }
  return path;
}
