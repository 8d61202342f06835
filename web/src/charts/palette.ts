// Colours. The variables are in charts.css; this module says which is used for what.

import { sv } from "./dom.ts";
import type { Style } from "./dom.ts";

/** Distinct colours of charts.css, --c0 to --c9. */
export const SERIES_COLOURS = 10;

/** How a line is drawn. Colour alone tells ten lines apart; the dash adds a second sign for those who see fewer colours. */
export interface LineStyle {
  colour: string;
  dash: string;
  width: number;
}

export const lineStyle = (colour: number, dash: "" | "6 3" | "2 3", width = 1.8): LineStyle => ({
  colour: `var(--c${colour % SERIES_COLOURS})`,
  dash,
  width,
});

export const stroke = (line: LineStyle): Style => ({
  stroke: line.colour,
  "stroke-dasharray": line.dash || "none",
  "stroke-width": line.width,
});

/** A piece of a line, for legends and tooltips. */
export const swatch = (line: LineStyle): SVGSVGElement =>
  sv(
    "svg",
    { width: 22, height: 10, "aria-hidden": "true" },
    sv("line", { x1: 0, x2: 22, y1: 5, y2: 5, style: { ...stroke(line), "stroke-width": 3 } }),
  );

/** Colours of jobs, chosen by a hash of the name: they repeat. */
export const JOB_COLOURS = [
  "#5b73d6", "#88ccee", "#44aa99", "#2f8f5b", "#a9a93c", "#ddcc77",
  "#e0806c", "#b84f74", "#b96fc0", "#8fb3e0", "#c9923f", "#98a1ae",
];

export function jobColour(name: string): string {
  let hash = 2166136261;
  for (const character of name) hash = Math.imul(hash ^ (character.codePointAt(0) ?? 0), 16777619);
  hash ^= hash >>> 15;
  return JOB_COLOURS[(Math.imul(hash, 2246822519) >>> 7) % JOB_COLOURS.length];
}

type Rgb = readonly [number, number, number];
const parse = (hex: string): Rgb => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)) as unknown as Rgb;

/** Stops of the colour of a rate, from 0.4 and slower to 1.1 and faster; every hundredth differs. */
const RATE_STOPS: readonly (readonly [number, Rgb])[] = [
  [0.4, parse("#a3195b")],
  [0.6, parse("#d95f2b")],
  [0.8, parse("#e6b73c")],
  [0.95, parse("#7fb35a")],
  [1.0, parse("#2f8f6b")],
  [1.1, parse("#1f6fb0")],
];
export const RATE_UNKNOWN = "#8a93a0";

/** The colour of a rate, speed relative to running alone. */
export function rateColour(rate: number | null | undefined): string {
  if (rate === null || rate === undefined || !Number.isFinite(rate)) return RATE_UNKNOWN;
  const last = RATE_STOPS.length - 1;
  if (rate <= RATE_STOPS[0][0]) return rgb(RATE_STOPS[0][1]);
  if (rate >= RATE_STOPS[last][0]) return rgb(RATE_STOPS[last][1]);
  const above = RATE_STOPS.findIndex(([at]) => at >= rate);
  const [[low, from], [high, to]] = [RATE_STOPS[above - 1], RATE_STOPS[above]];
  const part = (rate - low) / (high - low);
  return rgb(from.map((channel, i) => Math.round(channel + part * (to[i] - channel))) as unknown as Rgb);
}

const rgb = ([r, g, b]: Rgb): string => `rgb(${r},${g},${b})`;

/** Black or white, whichever is easier to read on a colour of the form rgb(r,g,b) or #rrggbb. */
export function inkOn(colour: string): string {
  const channels = colour.startsWith("#") ? parse(colour) : (colour.match(/\d+/g) ?? ["0", "0", "0"]).map(Number);
  const [r, g, b] = channels.map((c) => {
    const x = c / 255;
    return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return luminance > 0.19 ? "#101418" : "#ffffff";
}
