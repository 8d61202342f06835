import { describe, expect, it } from "vitest";
import { NB, bytes, count, dur, moment, pct, short, times } from "../src/charts/format.ts";

const plain = (text: string) => text.replaceAll(NB, " ");

describe("durations", () => {
  it("have at most two units and are rounded before they are split", () => {
    const cases: [number, string][] = [
      [0, "0 s"], [1.5e-6, "1.5 µs"], [0.0123, "12.3 ms"], [9.94, "9.9 s"], [59.4, "59 s"], [3599.7, "1 h"],
      [3600 + 59.99 * 60, "2 h"], [90, "1 min 30 s"], [86400 * 3 + 3600, "3 d 1 h"], [-90, "−1 min 30 s"], [Infinity, "–"],
    ];
    for (const [seconds, text] of cases) expect(plain(dur(seconds))).toBe(text);
  });
  it("on an axis of days keep the clock short", () => {
    expect(plain(moment(86400 * 12 + 6.5 * 3600, 86400 * 20, 3600))).toBe("12 d 06:30");
  });
});

describe("ratios", () => {
  it("are never shown as 0.00", () => {
    expect([0.001, 0.0005, 0.094, 0.5, 12.34, 2757.2, 0].map(times)).toEqual(["0.001", "0.0005", "0.094", "0.50", "12.3", "2,757", "0"]);
  });
});

it("names are cut by characters, not by halves of them", () => {
  expect(short("👩‍🔬".repeat(3), 3)).not.toContain("\ufffd");
  expect(short("abcdef", 4)).toBe("abc…");
  expect(short("abc", 3)).toBe("abc");
});

it("counts have their noun", () => {
  expect([plain(count(1, "job")), plain(count(2000, "job")), plain(pct(0.0698))]).toEqual(["1 job", "2,000 jobs", "7.0 %"]);
});

it("sizes are in binary units", () => {
  expect([0, 1023, 1024, 16e9, 2 ** 40 * 1.5].map((b) => plain(bytes(b)))).toEqual(["0 B", "1,023 B", "1.0 KiB", "14.9 GiB", "1.5 TiB"]);
});
