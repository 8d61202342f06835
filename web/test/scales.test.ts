import { describe, expect, it } from "vitest";
import { clockTicks, linear, logDomain, logTicks, logarithmic, niceTicks, rangeTicks, timeTicks } from "../src/charts/scales.ts";

describe("scales", () => {
  it("invert what they do", () => {
    for (const scale of [linear(3, 9, 100, 20), logarithmic(0.1, 1e6, 0, 500)]) {
      for (const value of [3.5, 5, 8.9]) expect(scale.invert(scale(value))).toBeCloseTo(value, 9);
    }
  });
  it("of one value are no division by zero", () => {
    expect(Number.isFinite(linear(5, 5, 0, 100)(5))).toBe(true);
  });
});

describe("ticks", () => {
  it("of times are round and inside", () => {
    const ticks = timeTicks(0, 86400 * 50, 8);
    expect(ticks.map(([t]) => t / 86400)).toEqual([0, 7, 14, 21, 28, 35, 42, 49]);
  });
  it("of clocks are at full hours of the zone", () => {
    const from = Date.UTC(2026, 0, 2, 10, 17) / 1000;
    for (const [t] of clockTicks(from, from + 6 * 3600, 6)) {
      const minutes = new Date(t * 1000).getMinutes();
      expect(minutes).toBe(0);
      expect(t).toBeGreaterThanOrEqual(from);
    }
  });
  it("from zero are 1, 2 or 5 times a power of ten", () => {
    expect(niceTicks(520, 5).map(([v]) => v)).toEqual([0, 200, 400]);
    expect(rangeTicks(0.31, 0.97, 4).map(([, text]) => text)).toEqual(["0.4", "0.6", "0.8"]);
  });
  it("of a log axis keep their distance", () => {
    const x = logarithmic(1, 1e6, 0, 600);
    const at = logTicks(x, 52).map(([t]) => x(t));
    for (let i = 1; i < at.length; i++) expect(at[i] - at[i - 1]).toBeGreaterThanOrEqual(52);
    expect(at.length).toBeGreaterThan(3);
  });
});

it("a log domain leaves out what is far below a second", () => {
  expect(logDomain([[0.001, 5000]])).toEqual({ low: 1, high: 5000, cut: true });
  expect(logDomain([[]])).toEqual({ low: 0.5, high: 2, cut: false });
  expect(logDomain([[10, 11]])).toEqual({ low: 5, high: 22, cut: false });
});
