// The frame of the SVG charts: picture, axes and the cursor.

import { clamp, fill, sv } from "./dom.ts";
import type { Scale, Tick } from "./scales.ts";
import { hideTip, showTip } from "./tip.ts";
import type { TipRow } from "./tip.ts";

/** Room for a drawing inside of the padding of its host. */
export function plotWidth(host: HTMLElement): number {
  const { paddingLeft, paddingRight } = getComputedStyle(host);
  const padding = (parseFloat(paddingLeft) || 0) + (parseFloat(paddingRight) || 0);
  return Math.max(240, Math.floor(host.clientWidth - padding));
}

/** Puts an empty picture in the place of what is there. */
export function mount(host: HTMLElement, width: number, height: number, label: string): SVGSVGElement {
  const svg = sv("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  host.replaceChildren(svg);
  return svg;
}

export interface Axes {
  x: Scale;
  y: Scale;
  xTicks: readonly Tick[];
  yTicks: readonly Tick[];
  xLabel?: string;
  yLabel?: string;
}

export function drawAxes(svg: SVGElement, { x, y, xTicks, yTicks, xLabel, yLabel }: Axes): void {
  const [x0, x1] = x.range;
  const [y0, y1] = y.range;
  for (const [value, text] of yTicks) {
    const at = y(value);
    svg.append(
      sv("line", { class: "grid", x1: x0, x2: x1, y1: at, y2: at }),
      sv("text", { x: x0 - 8, y: at + 4, "text-anchor": "end" }, text),
    );
  }
  for (const [value, text] of xTicks) {
    const at = x(value);
    const anchor = at > x1 - 24 ? "end" : at < x0 + 12 ? "start" : "middle"; // outer labels stay inside the picture
    const label = anchor === "end" ? Math.min(at + 18, x1) : anchor === "start" ? x0 : at;
    svg.append(
      sv("line", { class: "grid", x1: at, x2: at, y1: y0, y2: y1 }),
      sv("text", { x: label, y: y0 + 18, "text-anchor": anchor }, text),
    );
  }
  svg.append(sv("line", { class: "axis", x1: x0, x2: x1, y1: y0, y2: y0 }));
  if (yLabel) svg.append(sv("text", { x: 0, y: y1 - 12 }, yLabel));
  if (xLabel) svg.append(sv("text", { x: (x0 + x1) / 2, y: y0 + 38, "text-anchor": "middle" }, xLabel));
}

/** Left margin that holds the labels of a vertical axis. */
export const leftMargin = (ticks: readonly Tick[]): number =>
  16 + 7.2 * ticks.reduce((most, [, text]) => Math.max(most, text.length), 0);

/** Where a pointer is, in units of the picture. */
export function pointerAt(svg: SVGSVGElement, event: PointerEvent): [x: number, y: number] {
  const box = svg.getBoundingClientRect();
  const scale = svg.viewBox.baseVal.width / box.width;
  return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
}

/** Where a point of the picture is on the screen. */
export function screenAt(svg: SVGSVGElement, x: number, y: number): [x: number, y: number] {
  const box = svg.getBoundingClientRect();
  const scale = box.width / svg.viewBox.baseVal.width;
  return [box.left + x * scale, box.top + y * scale];
}

interface CursorInput {
  move(event: PointerEvent): void;
  off(): void;
  /** An arrow key: −1 to the left, 1 to the right. */
  step(direction: -1 | 1): void;
}

/** Pointer, touch and arrow keys of a chart with one cursor. */
function addCursorInput(svg: SVGSVGElement, { move, off, step }: CursorInput): void {
  fill(svg, {
    tabindex: 0,
    onpointermove: move,
    onpointerdown: move,
    onpointerleave: (event: PointerEvent) => {
      if (event.pointerType === "mouse") off();
    },
    onblur: off,
    onkeydown: (event: KeyboardEvent) => {
      if (event.key === "Escape") off();
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      event.preventDefault();
      step(event.key === "ArrowLeft" ? -1 : 1);
    },
  });
}

export interface CursorOptions {
  low: number;
  high: number;
  /** Keys walk up to here; `high` unless told. */
  keyHigh?: number;
  /** What to show at a place. */
  at(x: number): { head: string; rows: readonly TipRow[] } | null;
  hide(): void;
}

/** Pointer, touch and arrow keys move one cursor along the horizontal axis. */
export function addCursor(svg: SVGSVGElement, { low, high, keyHigh = high, at, hide }: CursorOptions): void {
  let x: number | null = null;
  const put = (to: number, screenX: number, screenY: number) => {
    x = clamp(to, low, high);
    const shown = at(x);
    if (shown) showTip(svg, screenX, screenY, shown.head, shown.rows);
  };
  const move = (event: PointerEvent) => put(pointerAt(svg, event)[0], event.clientX, event.clientY);
  const off = () => {
    x = null;
    hideTip(svg);
    hide();
  };
  const step = (direction: -1 | 1) => {
    const next = x === null ? (low + keyHigh) / 2 : clamp(x + (direction * (keyHigh - low)) / 60, low, keyHigh);
    const box = svg.getBoundingClientRect();
    put(next, screenAt(svg, next, 0)[0], clamp(box.top + box.height / 2, 40, innerHeight - 40));
  };
  addCursorInput(svg, { move, off, step });
}

export interface PointOptions<P> {
  points: readonly P[];
  place(point: P): readonly [x: number, y: number];
  describe(point: P): { head: string; rows: readonly TipRow[] };
  ringRadius: number;
}

/** A ring and a tooltip on the nearest point; arrow keys walk from left to right. */
export function addPointCursor<P>(svg: SVGSVGElement, { points, place, describe, ringRadius }: PointOptions<P>): void {
  const ring = svg.appendChild(sv("circle", { class: "ring", r: ringRadius }));
  const order = [...points].sort((a, b) => place(a)[0] - place(b)[0]);
  let position = -1;
  const show = (point: P) => {
    const [x, y] = place(point);
    ring.setAttribute("cx", String(x));
    ring.setAttribute("cy", String(y));
    ring.style.visibility = "visible";
    position = order.indexOf(point);
    const { head, rows } = describe(point);
    showTip(svg, ...screenAt(svg, x, y), head, rows);
  };
  const off = () => {
    ring.style.visibility = "";
    hideTip(svg);
  };
  const move = (event: PointerEvent) => {
    const [px, py] = pointerAt(svg, event);
    const reach = event.pointerType === "mouse" ? 16 : 30;
    let found: P | null = null;
    let nearest = reach * reach;
    for (const point of points) {
      const [x, y] = place(point);
      const distance = (x - px) ** 2 + (y - py) ** 2;
      if (distance < nearest) {
        nearest = distance;
        found = point;
      }
    }
    if (found === null) off();
    else show(found);
  };
  const step = (direction: -1 | 1) => {
    if (order.length) show(order[clamp(position + direction, 0, order.length - 1)]);
  };
  addCursorInput(svg, { move, off, step });
}
