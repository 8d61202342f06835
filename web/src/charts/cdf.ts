// Cumulative distributions.

import type { Point } from "./lines.ts";
import type { Scale } from "./scales.ts";

/** Points from here on are samples of a curve, where steps would only add noise; fewer are real steps. */
const STEPS_MAX = 64;

export function cdfPath(points: readonly Point[], x: Scale, y: Scale): string {
  if (!points.length) return "";
  const step = points.length < STEPS_MAX;
  let path = `M${x(points[0][0]).toFixed(1)},${y(0).toFixed(1)}`;
  for (const [value, part] of points) {
    path += (step ? `H${x(value).toFixed(1)}V` : `L${x(value).toFixed(1)},`) + y(part).toFixed(1);
  }
  return path + `H${x.range[1]}`;
}

/** The share of values up to `value`. */
export function cdfAt(points: readonly Point[], value: number): number {
  let low = 0;
  let high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= value * 1.000001) low = middle + 1;
    else high = middle;
  }
  return low ? points[low - 1][1] : 0;
}

/** The value below which half of all lie. */
export const medianOf = (points: readonly Point[]): number | null =>
  points.find(([, part]) => part >= 0.5)?.[0] ?? null;
