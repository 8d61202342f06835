// GPUs × time: one row per GPU, one lane per tenant. On a canvas, because twenty thousand SVG nodes would make zooming slow.

import { clamp, css, el } from "./dom.ts";
import { short, shortEnd } from "./format.ts";
import { addGanttInput } from "./gantt_input.ts";
import { inkOn } from "./palette.ts";
import type { Tick } from "./scales.ts";
import { hideTip, showTip } from "./tip.ts";
import type { TipRow } from "./tip.ts";

export interface GanttRow {
  label: string;
  /** The node of the GPU: a line is drawn between groups. */
  group: string;
}

/** A tenant in its lane of a row. Times are seconds. */
export interface Segment {
  row: number;
  from: number;
  to: number;
  lane: number;
  lanes: number;
  /** Segments of one job have one key. */
  key: number;
}

export type Hatch = "none" | "shared" | "forecast";

export interface GanttData<S extends Segment> {
  rows: readonly GanttRow[];
  segments: readonly S[];
  /** All that can be seen. */
  extent: readonly [number, number];
  /** What is seen until the reader zooms; the extent unless told. */
  home?: readonly [number, number];
  /** The present, where the forecast begins. */
  now?: number;
  /** What the rows are; GPUs unless said otherwise. */
  caption?: string;
  /** Above the rows, on the right. */
  title: string;
  /** Under the axis. */
  axis: string;
  /** For those who do not see it, with the view. */
  label(from: number, to: number): string;
  /** What stands where there are no segments. */
  empty: string;
}

export interface GanttStyle<S extends Segment> {
  colour(segment: S): string;
  hatch(segment: S): Hatch;
  /** Written into a segment where there is room. */
  text?(segment: S): string;
  describe(segment: S, row: readonly S[]): { head: string; rows: readonly TipRow[] };
  ticks(from: number, to: number, room: number): readonly Tick[];
  /** Click or Enter on a segment. */
  open?(segment: S): void;
}

const FONT = "11px system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif";
const TOP = 22;
const RIGHT = 10;
const AXIS = 52;

export class Gantt<S extends Segment> {
  readonly canvas = el("canvas", { role: "img", tabindex: 0, "data-marks": 0 });
  private readonly over = el("canvas", { "aria-hidden": "true" });
  private data: GanttData<S>;
  private byRow: S[][] = [];
  /** The longest segment of each row, so that those in view are found by bisection. */
  private longest: number[] = [];
  /** The most lanes of a row. */
  private lanes = 1;
  private v0 = 0;
  private v1 = 1;
  private follows = true;
  private tall = false;
  private picked: S | null = null;
  private band: readonly [number, number] | null = null;
  private width = 0;
  private height = 0;
  private rowHeight = 0;
  private left = 0;
  private pending = 0;

  constructor(
    private readonly host: HTMLElement,
    private readonly style: GanttStyle<S>,
    data: GanttData<S>,
  ) {
    this.data = data;
    host.replaceChildren(this.canvas, this.over);
    this.set(data, false);
    addGanttInput(this);
  }

  /** New data. Who has not zoomed follows the present; who has keeps the view. */
  set(data: GanttData<S>, drawSoon = true): void {
    this.data = data;
    this.byRow = Array.from(data.rows, () => []);
    this.longest = Array.from(data.rows, () => 0);
    this.lanes = 1;
    for (const segment of data.segments) {
      this.lanes = Math.max(this.lanes, segment.lanes);
      const row = this.byRow[segment.row];
      if (!row) continue;
      row.push(segment);
      this.longest[segment.row] = Math.max(this.longest[segment.row], segment.to - segment.from);
    }
    for (const row of this.byRow) row.sort((a, b) => a.from - b.from || a.lane - b.lane);
    const before = this.picked;
    this.picked = before && (this.byRow[before.row]?.find((s) => s.key === before.key && s.from === before.from) ?? null);
    if (this.follows) [this.v0, this.v1] = this.home();
    else [this.v0, this.v1] = this.inExtent(this.v0, this.v1);
    if (drawSoon) this.drawSoon();
  }

  private home(): readonly [number, number] {
    return this.data.home ?? this.data.extent;
  }

  private inExtent(a: number, b: number): [number, number] {
    const [from, to] = this.data.extent;
    const width = clamp(b - a, Math.max((to - from) / 5000, 1e-6), to - from);
    const start = clamp((a + b) / 2 - width / 2, from, to - width);
    return [start, start + width];
  }

  get view(): readonly [number, number] {
    return [this.v0, this.v1];
  }

  get isFollowing(): boolean {
    return this.follows;
  }

  get hasWholeExtent(): boolean {
    const [from, to] = this.data.extent;
    return this.v1 - this.v0 >= (to - from) * 0.999;
  }

  setView(a: number, b: number): void {
    this.follows = false;
    [this.v0, this.v1] = this.inExtent(a, b);
    hideTip();
    this.drawSoon();
  }

  zoom(factor: number, at = (this.v0 + this.v1) / 2): void {
    this.setView(at - (at - this.v0) / factor, at + (this.v1 - at) / factor);
  }

  pan(part: number): void {
    const width = this.v1 - this.v0;
    this.setView(this.v0 + part * width, this.v1 + part * width);
  }

  /** Back to what was seen at first; follows the present again. */
  reset(): void {
    this.follows = true;
    [this.v0, this.v1] = this.home();
    hideTip();
    this.drawSoon();
  }

  setTall(tall: boolean): void {
    this.tall = tall;
    this.draw();
  }

  drawSoon(): void {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }

  destroy(): void {
    cancelAnimationFrame(this.pending);
    this.pending = 0;
    hideTip(this.canvas);
  }

  private x(t: number): number {
    return this.left + ((t - this.v0) / (this.v1 - this.v0)) * (this.width - this.left - RIGHT);
  }

  timeAt(px: number): number {
    return this.v0 + ((px - this.left) / (this.width - this.left - RIGHT)) * (this.v1 - this.v0);
  }

  /** Keeps a horizontal place inside the rows. */
  inside(px: number): number {
    return clamp(px, this.left, this.width - RIGHT);
  }

  get plotWidth(): number {
    return this.width - this.left - RIGHT;
  }

  private box(s: S): [x: number, y: number, width: number, height: number] {
    const [x0, x1] = [this.x(Math.max(s.from, this.v0)), this.x(Math.min(s.to, this.v1))];
    const height = (this.rowHeight - (this.rowHeight > 5 ? 1 : 0)) / s.lanes;
    return [x0, TOP + s.row * this.rowHeight + s.lane * height, Math.max(0.8, x1 - x0), height];
  }

  private isInView(s: S): boolean {
    return s.to >= this.v0 && s.from <= this.v1;
  }

  /** Segments of a row that are in view, in order. */
  private *visible(row: number): Generator<S> {
    const segments = this.byRow[row];
    const earliest = this.v0 - this.longest[row];
    let low = 0;
    let high = segments.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (segments[middle].from < earliest) low = middle + 1;
      else high = middle;
    }
    for (; low < segments.length && segments[low].from <= this.v1; low++) {
      if (segments[low].to >= this.v0) yield segments[low];
    }
  }

  draw(): void {
    const rows = this.data.rows.length;
    this.width = Math.max(240, Math.floor(this.host.clientWidth));
    const small = this.width < 520;
    // Every lane can be seen, those of a node with many tenants as well.
    this.rowHeight = this.tall ? 26 : clamp(560 / Math.max(1, rows), clamp(2.5 * this.lanes, 5.5, 26), 26);
    this.height = Math.ceil(TOP + rows * this.rowHeight + AXIS);
    const longest = this.data.rows.reduce((most, row) => Math.max(most, row.label.length), 0);
    this.left = clamp(longest * 7 + 12, small ? 46 : 62, small ? 64 : 132);
    const dpr = clamp(devicePixelRatio || 1, 1, 3);
    for (const canvas of [this.canvas, this.over]) {
      const [w, h] = [Math.round(this.width * dpr), Math.round(this.height * dpr)];
      if (canvas.width !== w) canvas.width = w;
      if (canvas.height !== h) canvas.height = h;
      canvas.style.aspectRatio = this.width + "/" + this.height;
    }
    const c = this.canvas.getContext("2d");
    if (!c) return;
    c.setTransform(dpr, 0, 0, dpr, 0, 0);
    c.clearRect(0, 0, this.width, this.height);
    c.font = FONT;
    c.textBaseline = "middle";
    this.drawRows(c, small);
    const marks = this.drawSegments(c, dpr);
    this.canvas.dataset.marks = String(marks);
    this.drawAxis(c, marks);
    this.canvas.setAttribute("aria-label", this.data.label(this.v0, this.v1));
    this.drawOverlay();
  }

  private drawRows(c: CanvasRenderingContext2D, small: boolean): void {
    const { rows, title } = this.data;
    const h = this.rowHeight;
    const [soft, line] = [css("--soft"), css("--line")];
    c.fillStyle = css("--track");
    c.fillRect(this.left, TOP, this.plotWidth, rows.length * h);
    c.fillStyle = soft;
    c.textAlign = "left";
    const groups = new Set(rows.map((row) => row.group)).size;
    c.fillText(this.data.caption ?? (groups < 2 ? "GPU" : h >= 11 ? "GPU (node and GPU)" : "GPU (grouped by node)"), 0, 8);
    c.textAlign = "right";
    if (!small) c.fillText(short(title, (this.width - 170) / 7.5), this.width - RIGHT, 8);
    // Every GPU has a label where there is room, otherwise the node has one at its first GPU.
    let lastY = -99;
    rows.forEach((row, i) => {
      const y = TOP + i * h;
      const isFirst = !i || row.group !== rows[i - 1].group;
      if (isFirst && i) {
        c.fillStyle = line;
        c.fillRect(4, y - 0.5, this.width - RIGHT - 4, 1);
      }
      if ((h >= 11 || isFirst || groups < 2) && y - lastY >= 11) {
        c.fillStyle = soft;
        c.textAlign = "right";
        const text = h >= 11 || groups < 2 ? row.label : row.group;
        c.fillText(shortEnd(text, (this.left - 8) / 6), this.left - 6, y + Math.max(h, 11) / 2);
        lastY = y;
      }
    });
  }

  private drawSegments(c: CanvasRenderingContext2D, dpr: number): number {
    const { rows, now } = this.data;
    const bg = css("--bg");
    const patterns: Record<Hatch, CanvasPattern | null> = {
      none: null,
      shared: hatchPattern(c, dpr, css("--hatch"), 6),
      forecast: hatchPattern(c, dpr, css("--forecast"), 4),
    };
    c.save();
    c.beginPath();
    c.rect(this.left, 0, this.plotWidth, TOP + rows.length * this.rowHeight);
    c.clip();
    let marks = 0;
    for (let row = 0; row < rows.length; row++) {
      for (const s of this.visible(row)) {
        marks++;
        this.drawSegment(c, s, bg, patterns[this.style.hatch(s)]);
      }
    }
    c.restore();
    if (now !== undefined && now >= this.v0 && now <= this.v1) {
      c.fillStyle = css("--ink");
      c.fillRect(this.x(now) - 0.75, TOP - 4, 1.5, rows.length * this.rowHeight + 8);
      c.textAlign = "center";
      c.fillText("now", this.inside(this.x(now)), TOP - 10);
    }
    return marks;
  }

  private drawSegment(c: CanvasRenderingContext2D, s: S, bg: string, pattern: CanvasPattern | null): void {
    const [x, y, w, h] = this.box(s);
    const colour = this.style.colour(s);
    const isForecast = this.style.hatch(s) === "forecast";
    c.globalAlpha = isForecast ? 0.45 : 1;
    c.fillStyle = colour;
    c.fillRect(x, y, w, h);
    c.globalAlpha = 1;
    if (pattern && w > 2 && h >= 3) {
      c.fillStyle = pattern;
      c.fillRect(x, y, w, h);
    }
    c.fillStyle = bg;
    if (s.lane && w > 2) c.fillRect(x, y - 0.5, w, h > 5 ? 1 : 0.7);
    if (w > 3) c.fillRect(x + w - 0.7, y, 0.7, h);
    const text = this.style.text && h >= 10 && w >= 34 ? this.style.text(s) : "";
    if (!text) return;
    const fits = short(text, (w - 6) / 6);
    if (fits.length < 2) return;
    c.textAlign = "left";
    if (isForecast || pattern) {
      // Hatched bars get a plain ground under their letters.
      const wide = Math.min(w, c.measureText(fits).width + 6);
      c.fillStyle = isForecast ? bg : colour;
      c.fillRect(x + 1, y + h / 2 - 6, wide, 12);
    }
    c.fillStyle = isForecast ? css("--ink") : inkOn(colour);
    c.fillText(fits, x + 4, y + h / 2 + 0.5);
  }

  private drawAxis(c: CanvasRenderingContext2D, marks: number): void {
    const n = this.data.rows.length;
    const bottom = TOP + n * this.rowHeight;
    const [soft, line] = [css("--soft"), css("--line")];
    c.fillStyle = soft;
    c.textAlign = "center";
    const middle = (this.left + this.width) / 2;
    if (!marks && n) c.fillText(this.data.empty, middle, TOP + Math.max((n * this.rowHeight) / 2, 6));
    for (const [t, text] of this.style.ticks(this.v0, this.v1, (this.width - this.left) / 96)) {
      const at = this.x(t);
      c.fillStyle = line;
      c.fillRect(at, bottom, 1, 5);
      c.fillStyle = soft;
      c.textAlign = at > this.width - 44 ? "right" : at < this.left + 20 ? "left" : "center";
      c.fillText(text, c.textAlign === "right" ? Math.min(at + 30, this.width - 2) : at, bottom + 14);
    }
    c.textAlign = "center";
    c.fillText(this.data.axis, middle, bottom + 34);
    // A thin bar under the axis shows which part of the whole is in view.
    if (this.hasWholeExtent) return;
    const [from, to] = this.data.extent;
    const scale = this.plotWidth / (to - from);
    c.fillStyle = css("--track");
    c.fillRect(this.left, this.height - 6, this.plotWidth, 4);
    c.fillStyle = css("--accent");
    c.fillRect(this.left + (this.v0 - from) * scale, this.height - 6, Math.max(3, (this.v1 - this.v0) * scale), 4);
  }

  private drawOverlay(): void {
    const c = this.over.getContext("2d");
    if (!c) return;
    const dpr = this.over.width / this.width;
    const rows = this.data.rows.length * this.rowHeight;
    c.setTransform(dpr, 0, 0, dpr, 0, 0);
    c.clearRect(0, 0, this.width, this.height);
    if (this.band) {
      const [a, b] = this.band;
      c.fillStyle = css("--accent");
      c.globalAlpha = 0.22;
      c.fillRect(Math.min(a, b), TOP, Math.abs(b - a), rows);
      c.globalAlpha = 1;
    }
    const picked = this.picked;
    if (!picked) return;
    c.save();
    c.beginPath();
    c.rect(this.left - 2, 0, this.plotWidth + 4, TOP + rows + 2);
    c.clip();
    c.strokeStyle = css("--ink");
    c.lineWidth = 1.5; // all GPUs of the same job, so that a multi-GPU job is seen as one
    for (let row = 0; row < this.byRow.length; row++) {
      for (const s of this.visible(row)) if (s.key === picked.key) c.strokeRect(...this.box(s));
    }
    c.lineWidth = 3;
    if (this.isInView(picked)) c.strokeRect(...this.box(picked));
    c.restore();
  }

  setBand(band: readonly [number, number] | null): void {
    this.band = band;
    if (band) {
      this.picked = null;
      hideTip();
    }
    this.drawOverlay();
  }

  /** A place of the pointer in units of the picture. */
  place(event: MouseEvent): [number, number] {
    const box = this.canvas.getBoundingClientRect();
    const [sx, sy] = [this.width / box.width, this.height / box.height];
    return [(event.clientX - box.left) * sx, (event.clientY - box.top) * sy];
  }

  hit(px: number, py: number): S | null {
    const row = Math.floor((py - TOP) / this.rowHeight);
    if (!this.byRow[row] || px < this.left) return null;
    let found: S | null = null;
    let near = 3; // thin segments get three pixels of grace
    for (const s of this.visible(row)) {
      const [x, y, w, h] = this.box(s);
      const distance = Math.max(x - px, px - x - w, 0);
      if (py >= y - 0.5 && py <= y + h + 1 && distance <= near) {
        near = distance;
        found = s;
      }
    }
    return found;
  }

  pick(s: S | null, screenX = 0, screenY = 0): void {
    this.picked = s;
    this.drawOverlay();
    if (!s) return hideTip(this.canvas);
    const { head, rows } = this.style.describe(s, this.byRow[s.row]);
    showTip(this.canvas, screenX, screenY, head, rows);
  }

  forget(): void {
    this.picked = null;
  }

  open(): boolean {
    if (!this.picked || !this.style.open) return false;
    this.style.open(this.picked);
    return true;
  }

  /** Goes from tenant to tenant, or to the first or last one of a row. */
  walk(key: string): void {
    let s = this.picked;
    if (key === "Home" || key === "End") {
      const row = this.byRow[(s ?? this.firstInView())?.row ?? 0];
      s = row?.[key === "Home" ? 0 : row.length - 1] ?? null;
    } else if (!s) s = this.firstInView();
    else if (key === "ArrowLeft" || key === "ArrowRight") {
      const row = this.byRow[s.row];
      s = row[row.indexOf(s) + (key === "ArrowLeft" ? -1 : 1)] ?? s;
    } else s = this.inNextRow(s, key === "ArrowUp" ? -1 : 1);
    if (!s) return;
    if (s.to <= this.v0 || s.from >= this.v1) {
      const [middle, half] = [(s.from + s.to) / 2, (this.v1 - this.v0) / 2];
      this.setView(middle - half, middle + half);
      this.draw();
    }
    const [x, y, w, h] = this.box(s);
    const box = this.canvas.getBoundingClientRect();
    const screenY = box.top + ((y + h / 2) * box.height) / this.height;
    this.pick(s, box.left + ((x + w / 2) * box.width) / this.width, clamp(screenY, 30, innerHeight - 30));
  }

  private firstInView(): S | null {
    for (let row = 0; row < this.byRow.length; row++) for (const s of this.visible(row)) return s;
    return null;
  }

  private inNextRow(s: S, step: number): S {
    const middle = (Math.max(s.from, this.v0) + Math.min(s.to, this.v1)) / 2;
    // Another lane of the same GPU comes first.
    const lane = this.byRow[s.row].find((o) => o.lane === s.lane + step && o.from <= middle && o.to > middle);
    if (lane) return lane;
    for (let row = s.row + step; this.byRow[row]; row += step) {
      const found = this.byRow[row].find((o) => o.to > middle);
      if (found) return found;
    }
    return s;
  }
}

function hatchPattern(c: CanvasRenderingContext2D, dpr: number, colour: string, gap: number): CanvasPattern | null {
  const tile = document.createElement("canvas");
  const size = Math.round(gap * dpr);
  tile.width = tile.height = size;
  const t = tile.getContext("2d");
  if (!t) return null;
  t.strokeStyle = colour;
  t.lineWidth = dpr;
  t.beginPath();
  for (const offset of [-size, 0, size]) {
    t.moveTo(offset, size);
    t.lineTo(offset + size, 0);
  }
  t.stroke();
  const pattern = c.createPattern(tile, "repeat");
  pattern?.setTransform(new DOMMatrix().scale(1 / dpr));
  return pattern;
}
