// A square heat map of rates: a row runs beside the class of the column.

import { clamp, fill, sv } from "./dom.ts";
import { mount, plotWidth, pointerAt, screenAt } from "./frame.ts";
import { num, short } from "./format.ts";
import { hideTip, showTip } from "./tip.ts";
import type { TipRow } from "./tip.ts";

/** Speed relative to running alone; 0 does not fit in memory, null was never measured. */
export type Rate = number | null;

export interface HeatMap {
  names: readonly string[];
  rate(row: number, column: number): Rate;
  /** From 0, a guess, to 1, certain: the size of the dot of a measured pair. */
  certainty?(row: number, column: number): number;
  describe(row: number, column: number): { head: string; rows: readonly TipRow[] };
  /** Click or Enter on a cell. */
  open?(row: number, column: number): void;
  /** Draw the names above the columns too. */
  namesColumns?: boolean;
  label: string;
  caption: string;
}

/** The lowest rate that occurs, where the colour scale ends. */
export function lowestRate({ names, rate }: Pick<HeatMap, "names" | "rate">): number {
  let low = 0.9;
  for (let a = 0; a < names.length; a++) {
    for (let b = 0; b < names.length; b++) {
      const value = rate(a, b);
      if (value && value < low) low = value;
    }
  }
  return low;
}

/** Colour variable and opacity of a rate. */
export function ratePaint(rate: Rate, low: number): [variable: string, opacity: number] {
  if (rate === null) return ["--track", 1];
  if (rate === 0) return ["--same", 1];
  if (rate < 1) return ["--worse", clamp((1 - rate) / (1 - low), 0.05, 1)];
  return ["--better", clamp((rate - 1) / 0.25, 0.05, 1)];
}

export function heatMap(host: HTMLElement, map: HeatMap): void {
  const n = map.names.length;
  const width = plotWidth(host);
  const left = width < 520 ? 96 : 200;
  // Names of columns lean over the right edge.
  const right = map.namesColumns ? 56 : 4;
  const cell = clamp((width - left - right) / n, 2, map.namesColumns && n <= 8 ? 44 : 28);
  // Names of columns are drawn aslant where a column is wide enough for a line of text.
  const named = map.namesColumns === true && cell >= 14;
  const top = named ? 96 : 20;
  const svg = mount(host, width, Math.ceil(top + n * cell + 4), map.label);
  svg.append(sv("text", { x: 0, y: 12 }, map.caption));
  const low = lowestRate(map);
  const size = Math.max(1, cell - 0.5).toFixed(1);
  let lastLabel = -99;
  map.names.forEach((name, a) => {
    const y = top + a * cell;
    if (y - lastLabel >= 12) {
      const text = short(name, (left - 10) / 7.6);
      svg.append(sv("text", { x: left - 6, y: y + cell / 2 + 4, "text-anchor": "end" }, text));
      lastLabel = y;
    }
    if (named) {
      const x = left + (a + 0.5) * cell;
      svg.append(sv("text", { x, y: top - 8, transform: `rotate(-50 ${x} ${top - 8})` }, short(name, 14)));
    }
    for (let b = 0; b < n; b++) {
      const [variable, opacity] = ratePaint(map.rate(a, b), low);
      const x = left + b * cell;
      const style = { fill: `var(${variable})`, "fill-opacity": opacity.toFixed(3) };
      svg.append(sv("rect", { class: "cell", x: x.toFixed(1), y: y.toFixed(1), width: size, height: size, style }));
      const certainty = map.certainty?.(a, b) ?? 0;
      if (certainty > 0 && cell >= 6) {
        const r = (cell * (0.08 + 0.14 * certainty)).toFixed(1);
        svg.append(sv("circle", { class: "dot", cx: (x + cell / 2).toFixed(1), cy: (y + cell / 2).toFixed(1), r }));
      }
    }
  });
  addCellCursor(svg, map, { left, top, cell, n });
}

interface Grid {
  left: number;
  top: number;
  cell: number;
  n: number;
}

const KEYS: Record<string, readonly [number, number]> = {
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
};

function addCellCursor(svg: SVGSVGElement, map: HeatMap, { left, top, cell, n }: Grid): void {
  const ring = svg.appendChild(sv("rect", { class: "ring", width: cell, height: cell }));
  let chosen: readonly [number, number] | null = null;
  const show = (a: number, b: number) => {
    chosen = [a, b];
    ring.setAttribute("x", String(left + b * cell));
    ring.setAttribute("y", String(top + a * cell));
    ring.style.visibility = "visible";
    const { head, rows } = map.describe(a, b);
    showTip(svg, ...screenAt(svg, left + (b + 1) * cell, top + (a + 0.5) * cell), head, rows);
  };
  const off = () => {
    chosen = null;
    ring.style.visibility = "";
    hideTip(svg);
  };
  const move = (event: PointerEvent) => {
    const [x, y] = pointerAt(svg, event);
    const [a, b] = [Math.floor((y - top) / cell), Math.floor((x - left) / cell)];
    if (a >= 0 && a < n && b >= 0 && b < n) show(a, b);
    else off();
  };
  fill(svg, {
    tabindex: 0,
    onpointermove: move,
    onpointerdown: move,
    onclick: () => {
      if (chosen) map.open?.(...chosen);
    },
    onpointerleave: (event: PointerEvent) => {
      if (event.pointerType === "mouse") off();
    },
    onblur: off,
    onkeydown: (event: KeyboardEvent) => {
      if (event.key === "Escape") off();
      if (event.key === "Enter" && chosen) map.open?.(...chosen);
      const step = KEYS[event.key];
      if (!step) return;
      event.preventDefault();
      const [a, b] = chosen ?? [0, -step[1]];
      show(clamp(a + step[0], 0, n - 1), clamp(b + step[1], 0, n - 1));
    },
  });
}

/** A square of the colour of a rate, for the key. */
export function ratePatch(rate: Rate, low: number): SVGSVGElement {
  const [variable, opacity] = ratePaint(rate, low);
  const style = { fill: `var(${variable})`, "fill-opacity": opacity };
  return sv("svg", { width: 16, height: 16, "aria-hidden": "true" }, sv("rect", { width: 16, height: 16, style }));
}

/** A rate in words. */
export const sayRate = (rate: Rate): string =>
  rate === null ? "not measured" : rate === 0 ? "does not fit in memory" : "rate " + num(rate, 3);
