// Scales and their ticks.

import { dur, moment, num } from "./format.ts";

export interface Scale {
  (x: number): number;
  invert(y: number): number;
  readonly domain: readonly [number, number];
  readonly range: readonly [number, number];
}

export type Tick = readonly [value: number, text: string];

export function linear(d0: number, d1: number, r0: number, r1: number): Scale {
  const end = d1 > d0 ? d1 : d0 + 1;
  const forward = (x: number) => r0 + ((x - d0) / (end - d0)) * (r1 - r0);
  const invert = (y: number) => d0 + ((y - r0) / (r1 - r0)) * (end - d0);
  return Object.assign(forward, { invert, domain: [d0, end] as const, range: [r0, r1] as const });
}

export function logarithmic(d0: number, d1: number, r0: number, r1: number): Scale {
  const inner = linear(Math.log(d0), Math.log(d1), r0, r1);
  const forward = (x: number) => inner(Math.log(Math.max(x, d0)));
  const invert = (y: number) => Math.exp(inner.invert(y));
  return Object.assign(forward, { invert, domain: [d0, d1] as const, range: [r0, r1] as const });
}

export interface LogDomain {
  low: number;
  high: number;
  /** Values below one second are drawn at one second. */
  cut: boolean;
}

/** Domain of a log axis. Below one second nothing is told apart if the rest is far longer. */
export function logDomain(lists: readonly (readonly number[])[]): LogDomain {
  let low = Infinity;
  let high = 0;
  for (const list of lists) {
    for (const x of list) {
      if (x < low) low = x;
      if (x > high) high = x;
    }
  }
  if (!(high > 0)) return { low: 0.5, high: 2, cut: false };
  const cut = low < 1 && high > 60;
  low = cut ? 1 : Math.max(low, 1e-6);
  high = Math.max(high, low);
  return high / low < 4 ? { low: low / 2, high: high * 2, cut: false } : { low, high, cut };
}

const DAY = 86400;
const STEPS = [
  1e-6, 1e-5, 1e-4, 0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200,
  ...[1, 2, 5, 7, 14, 28, 56, 100, 200, 500, 1000, 2000, 5000, 1e4, 1e5, 1e6, 1e7].map((days) => days * DAY),
];

export function timeStep(span: number, room: number): number {
  return STEPS.find((step) => span / step <= Math.max(1, room)) ?? STEPS[STEPS.length - 1];
}

/** Ticks of spans since a beginning. */
export function timeTicks(from: number, to: number, room: number): Tick[] {
  const step = timeStep(to - from, room);
  const ticks: Tick[] = [];
  for (let k = Math.ceil(from / step - 1e-9); k * step <= to + step * 1e-6 && ticks.length < 99; k++) {
    const value = k * step || 0; // no "-0 d"
    ticks.push([value, moment(value, to, step)]);
  }
  return ticks;
}

const two = (x: number) => String(x).padStart(2, "0");
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** A clock time of the reader's zone, in seconds since 1970, as precise as the step of the axis. */
export function clock(seconds: number, step: number): string {
  const at = new Date(seconds * 1000);
  const day = `${at.getDate()} ${MONTHS[at.getMonth()]}`;
  if (step >= DAY) return day;
  const time = `${two(at.getHours())}:${two(at.getMinutes())}${step < 60 ? ":" + two(at.getSeconds()) : ""}`;
  return at.getHours() || at.getMinutes() || at.getSeconds() ? time : day;
}

/** Ticks of clock times, in seconds since 1970, at round times of the reader's zone. */
export function clockTicks(from: number, to: number, room: number): Tick[] {
  const step = timeStep(to - from, room);
  const offset = new Date(from * 1000).getTimezoneOffset() * 60;
  const ticks: Tick[] = [];
  for (let k = Math.ceil((from - offset) / step - 1e-9); k * step + offset <= to && ticks.length < 99; k++) {
    const value = k * step + offset;
    ticks.push([value, clock(value, step)]);
  }
  return ticks;
}

/** Ticks from zero, at 1, 2 or 5 times a power of ten. */
export function niceTicks(max: number, room: number): Tick[] {
  const raw = max / Math.max(1, room);
  const magnitude = 10 ** Math.floor(Math.log10(raw));
  const step = ([1, 2, 5, 10].find((m) => m * magnitude >= raw * 0.999) ?? 10) * magnitude;
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const ticks: Tick[] = [];
  for (let k = 0; k * step <= max * 1.0001; k++) ticks.push([k * step, num(k * step, digits)]);
  return ticks;
}

/** Ticks between two values, where zero need not be in sight. */
export function rangeTicks(low: number, high: number, room: number): Tick[] {
  const raw = (high - low) / Math.max(1, room);
  const magnitude = 10 ** Math.floor(Math.log10(raw));
  const step = ([1, 2, 5, 10].find((m) => m * magnitude >= raw * 0.999) ?? 10) * magnitude;
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const ticks: Tick[] = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-6; k++) {
    ticks.push([k * step, num(k * step || 0, digits)]);
  }
  return ticks;
}

// Ticks of a logarithmic time axis in order of preference: round units first, then what lies between, as far as there is room.
const LOG_TICKS = [
  1, 60, 3600, DAY, 864000, 1e-3, 1e-6, 8640000, 10, 600, 21600, 0.1, 1e-2, 1e-4, 1e-5, 259200, 2592000, 86400e3,
  86400e4, 2, 5, 30, 120, 300, 1800, 7200, 43200, 172800, 432000,
];

export function logTicks(scale: Scale, gap: number): Tick[] {
  const [low, high] = scale.domain;
  let kept: number[] = [];
  for (const tick of LOG_TICKS) {
    const fits = kept.every((other) => Math.abs(scale(other) - scale(tick)) >= gap);
    if (tick >= low * 0.999 && tick <= high * 1.001 && fits) kept.push(tick);
  }
  if (kept.length < 2) kept = [low, high];
  return kept.sort((x, y) => x - y).map((t) => [t, dur(t)]);
}
