// How the pages say things.

import { NB, count, dur, num } from "../charts/format.ts";
import { clock } from "../charts/scales.ts";
import type { JobState } from "../api/types.ts";

const STATE_WORDS: Record<JobState, string> = {
  pending: "pending", running: "running", paused: "paused", held: "held", completing: "completing", completed: "completed",
  failed: "failed", cancelled: "cancelled", timeout: "timed out", oom: "out of memory", unknown: "unknown",
};

export const sayState = (state: JobState): string => STATE_WORDS[state] ?? state;

/** A span of instants from now, such as "in 4–9 min". */
export function sayStart(range: readonly [number, number, number] | null | undefined, now: number): string {
  if (!range) return "not foreseeable";
  const [early, , late] = range.map((at) => Math.max(0, at - now));
  if (late < 1) return "now";
  const [a, b] = [dur(rounded(early)), dur(rounded(late))];
  if (a === b) return "in " + a;
  if (rounded(early) < 1) return "within " + b;
  const [numberA, ...unitA] = a.split(NB);
  const [, ...unitB] = b.split(NB);
  // 4 min and 9 min share their unit.
  return unitA.length === 1 && unitA[0] === unitB[0] && unitB.length === 1 ? `in ${numberA}–${b}` : `in ${a} to ${b}`;
}

/** Seconds as people round them. */
function rounded(seconds: number): number {
  if (seconds < 10) return Math.round(seconds);
  if (seconds < 60) return Math.round(seconds / 5) * 5;
  if (seconds < 3600) return Math.round(seconds / 60) * 60;
  if (seconds < 36_000) return Math.round(seconds / 600) * 600;
  return Math.round(seconds / 3600) * 3600;
}

export const sayRate = (rate: number | null | undefined): string => (rate === null || rate === undefined ? "–" : num(rate, 2));

/** 1 ÷ rate, as "×1.12". */
export const saySlowdown = (rate: number | null | undefined): string => (rate ? "×" + num(1 / rate, 2) : "–");

/** Milliseconds; from a second on in seconds. */
export const sayMs = (ms: number): string => (ms >= 1000 ? num(ms / 1000, 2) + NB + "s" : num(ms, ms < 10 ? 1 : 0) + NB + "ms");

/** How long something has lasted; from ten minutes on without seconds. */
export const sayUp = (seconds: number): string => dur(seconds < 600 ? Math.floor(seconds) : rounded(seconds));

/** A time of the reader's zone; of today without the date. */
export function sayTime(iso: string | null | undefined): string {
  if (!iso) return "–";
  const at = new Date(iso);
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday ? at.toLocaleTimeString() : at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

export const sayClock = (seconds: number): string => clock(seconds, 1);

export const sayGpus = (gpus: number): string => (Number.isInteger(gpus) ? count(gpus, "GPU") : num(gpus, 2) + NB + "GPU");

/** Why the page has no connection, what to do, and of when its picture is. */
export function sayLoss({ status, message }: { status: number; message: string }, seen: number | null): string {
  const known: Record<number, string> = {
    0: "The server of this page does not answer. If tandem dashboard has ended, run it again and open the address that it prints.",
    503: "The daemon does not answer. On its machine tandem doctor says why, and tandem daemon start starts it.",
  };
  const why = known[status] ?? message[0].toUpperCase() + message.slice(1) + ".";
  return seen === null ? why : `${why} This page shows the state at ${new Date(seen * 1000).toLocaleTimeString()}.`;
}

/** Hours; less than one in minutes or seconds. */
export const sayHours = (hours: number): string => (Math.abs(hours) < 1 ? dur(hours * 3600) : num(hours, Math.abs(hours) < 10 ? 2 : Math.abs(hours) < 100 ? 1 : 0) + NB + "h");

export const gpuNames = (devices: readonly number[]): string =>
  devices.length ? `GPU${devices.length > 1 ? "s" : ""} ${ranges(devices)}` : "–";

/** 0, 1, 2, 5 as "0–2, 5". */
export function ranges(numbers: readonly number[]): string {
  const sorted = [...numbers].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let i = 0; i < sorted.length; ) {
    let end = i;
    while (end + 1 < sorted.length && sorted[end + 1] === sorted[end] + 1) end++;
    parts.push(end > i + 1 ? `${sorted[i]}–${sorted[end]}` : sorted.slice(i, end + 1).join(", "));
    i = end + 1;
  }
  return parts.join(", ");
}
