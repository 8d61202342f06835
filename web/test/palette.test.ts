// The colours of policies must be told apart, by normal eyes and by the common kinds of colour blindness.

import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { SERIES_COLOURS, inkOn, rateColour } from "../src/charts/palette.ts";

const css = readFileSync(new URL("../src/charts/charts.css", import.meta.url), "utf8");
type Rgb = number[];

const linear = (c: number) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const parse = (hex: string): Rgb => [1, 3, 5].map((at) => linear(parseInt(hex.slice(at, at + 2), 16) / 255));

function oklab([r, g, b]: Rgb): Rgb {
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}
const distance = (a: Rgb, b: Rgb) => Math.hypot(...oklab(a).map((x, i) => x - oklab(b)[i]));
// Dichromats' view of linear RGB, after Viénot, Brettel and Mollon (1999).
const BLIND = [
  [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
  [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
];
const seen = (matrix: number[][], c: Rgb) => matrix.map((row) => Math.max(0, row[0] * c[0] + row[1] * c[1] + row[2] * c[2]));
const luminance = ([r, g, b]: Rgb) => 0.2126 * r + 0.7152 * g + 0.0722 * b;
const contrast = (a: Rgb, b: Rgb) => {
  const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
};

const block = (theme: "light" | "dark") => (theme === "light" ? css.split("@media")[0] : css.split("@media")[1]);
const variable = (theme: "light" | "dark", name: string): Rgb => {
  const found = block(theme).match(new RegExp(`--${name}:(#[0-9a-f]{3,6})\\b`))?.[1] ?? "";
  return parse(found.length === 4 ? "#" + Array.from(found.slice(1)).map((c) => c + c).join("") : found);
};

describe.each(["light", "dark"] as const)("the %s palette", (theme) => {
  const colours = Array.from({ length: SERIES_COLOURS }, (_, i) => variable(theme, "c" + i));
  const ground = variable(theme, "panel");

  it("has ten colours that differ", () => {
    for (let i = 0; i < colours.length; i++) {
      for (let j = 0; j < i; j++) expect(distance(colours[i], colours[j]), `c${i} and c${j}`).toBeGreaterThan(0.11);
    }
  });
  it("stays apart for colour-blind readers, most of all among lines of the same dash", () => {
    for (let i = 0; i < colours.length; i++) {
      for (let j = 0; j < i; j++) {
        const least = Math.min(...BLIND.map((m) => distance(seen(m, colours[i]), seen(m, colours[j]))));
        expect(least, `c${i} and c${j}`).toBeGreaterThan(i < 5 === j < 5 ? 0.07 : 0.04);
      }
    }
  });
  it("is seen on its ground", () => {
    colours.forEach((colour, i) => expect(contrast(colour, ground), `c${i}`).toBeGreaterThan(2.95));
    for (const name of ["ink", "soft", "accent", "good", "bad", "warn"]) {
      expect(contrast(variable(theme, name), ground), name).toBeGreaterThan(4.5);
    }
  });
});

it("every rate has a colour on which letters can be read", () => {
  const rates = [null, NaN, 0, 0.4, 0.55, 0.8, 0.9, 1, 1.05, 3];
  for (const rate of rates) {
    const colour = rateColour(rate);
    const rgb = colour.startsWith("#") ? parse(colour) : (colour.match(/\d+/g) ?? []).map((c) => linear(Number(c) / 255));
    expect(contrast(rgb, parse(inkOn(colour))), `${rate}: ${colour}`).toBeGreaterThan(4);
  }
  expect(rateColour(0.7)).not.toBe(rateColour(0.72));
});
