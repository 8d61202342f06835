// Numbers and times in words.

export const NB = "\u00a0";

export const num = (x: number, digits = 0): string =>
  x.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace("-", "−");
export const pct = (x: number, digits = 1): string => num(100 * x, digits) + NB + "%";
export const count = (n: number, one: string, many = one + "s"): string => num(n) + NB + (n === 1 ? one : many);

/** A ratio with enough digits to tell it from 0 and from 1. */
export function times(x: number): string {
  if (!Number.isFinite(x)) return "–";
  if (x >= 100) return num(x);
  if (x >= 10) return num(x, 1);
  if (x >= 0.095) return num(x, 2);
  return x === 0 ? "0" : String(Number(x.toPrecision(2)));
}

export function short(text: string, characters: number): string {
  const all = Array.from(text);
  return all.length > characters ? all.slice(0, Math.max(1, Math.floor(characters) - 1)).join("") + "…" : text;
}

/** As `short`, for names that differ at their end. */
export function shortEnd(text: string, characters: number): string {
  const all = Array.from(text);
  return all.length > characters ? "…" + all.slice(1 - Math.max(2, Math.floor(characters))).join("") : text;
}

const two = (a: number | string, unitA: string, b: number, unitB: string): string =>
  a + NB + unitA + (b ? NB + b + NB + unitB : "");

/** A duration in at most two units. Rounds first, so that 59.99 min is 1 h and never 60 min. */
export function dur(s: number): string {
  if (!Number.isFinite(s)) return "–";
  if (s < 0) return "−" + dur(-s);
  if (s === 0) return "0" + NB + "s";
  if (s < 9.995e-4) return Number((s * 1e6).toPrecision(3)) + NB + "µs";
  if (s < 0.9995) return Number((s * 1e3).toPrecision(3)) + NB + "ms";
  if (s < 9.95) return Number(s.toFixed(1)) + NB + "s";
  let rounded = Math.round(s);
  if (rounded < 60) return rounded + NB + "s";
  if (rounded < 3600) return two(Math.floor(rounded / 60), "min", rounded % 60, "s");
  rounded = Math.round(s / 60);
  if (rounded < 1440) return two(Math.floor(rounded / 60), "h", rounded % 60, "min");
  rounded = Math.round(s / 3600);
  return two(num(Math.floor(rounded / 24)), "d", rounded % 24, "h");
}

export const exact = (s: number): string => s.toLocaleString("en-US", { maximumFractionDigits: 6 }) + NB + "s";

export const pad = (x: number): string => String(x).padStart(2, "0");

/** A moment on a time axis; with days it is "12 d 06:30", because "12 d 6 h 30 min" is too wide for a tick. */
export function moment(s: number, span: number, step: number): string {
  if (step >= 86400) return num(s / 86400) + NB + "d";
  if (span < 86400) return dur(s);
  const r = Math.round(s);
  const [d, h, m] = [Math.floor(r / 86400), Math.floor((r % 86400) / 3600), Math.floor((r % 3600) / 60)];
  return d + NB + "d" + NB + pad(h) + ":" + pad(m) + (step < 60 ? ":" + pad(r % 60) : "");
}

export function bytes(b: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  let value = b;
  while (value >= 1023.5 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  return num(value, unit && value < 99.5 ? 1 : 0) + NB + units[unit];
}
