// Pair rates: the heat map, and what was believed at first.

import { el, greatest, least, sv } from "../charts/dom.ts";
import { count, num, pct } from "../charts/format.ts";
import { addPointCursor, drawAxes, mount, plotWidth } from "../charts/frame.ts";
import { heatMap, lowestRate, ratePatch, sayRate } from "../charts/heat.ts";
import type { Rate } from "../charts/heat.ts";
import { linear } from "../charts/scales.ts";
import type { Tick } from "../charts/scales.ts";
import { find } from "./page.ts";
import type { Page } from "./page.ts";

export function addPairs(page: Page): void {
  const id = "chart-pairs";
  const { pairs } = page.data;
  if (!pairs || !pairs.classes.length) return;
  const { classes: names, measured, believed, jobs, all_classes } = pairs;
  const n = names.length;
  find("#" + id).hidden = false;
  const which =
    n < all_classes
      ? `The ${num(n)} most frequent of ${num(all_classes)} classes`
      : n === 1 ? "The only class" : `All ${num(n)} classes`;
  find(`#${id} .lead`).textContent =
    which + " of the trace, the most frequent first. A row shows how fast its class runs beside the class of the column, in the same order; point at a cell for names and rates.";
  const rate = (a: number, b: number): Rate => measured[a][b];
  const low = lowestRate({ names, rate });
  const key = (text: string, value: Rate) => el("span", { class: "key" }, ratePatch(value, low), text);
  find(`#${id} .legend`).append(
    key("rate " + num(low, 2), low),
    key("rate " + num((1 + low) / 2, 2), (1 + low) / 2),
    key("full speed", 0.9999),
    key("faster than alone", 1.2),
    key("does not fit in memory", 0),
    key("not measured", null),
  );
  const describe = (a: number, b: number) => {
    const rows = [sayRate(measured[a][b])];
    const guess = believed?.[a][b] ?? null;
    if (guess !== null) rows.push("believed at first: " + num(guess, 3));
    if (a !== b) rows.push(`${names[b]} beside ${names[a]}: ${sayRate(measured[b][a])}`);
    rows.push(`${count(jobs[a], "job")} and ${count(jobs[b], "job")}`);
    return { head: `${names[a]} beside ${names[b]}`, rows };
  };
  const known = measured.flat().filter((value) => value).length;
  const label = `Rates of ${num(n)} by ${num(n)} classes: ${num(known)} measured, the lowest ${num(low, 2)}.`;
  const caption = "Class, beside the class of the column";
  page.add(() => heatMap(page.plot(id), { names, rate, describe, label, caption }));
}

interface Guess {
  name: string;
  beside: string;
  measured: number;
  believed: number;
}

export function addBeliefs(page: Page): void {
  const id = "chart-beliefs";
  const { pairs } = page.data;
  const believed = pairs?.believed;
  if (!pairs || !believed) return;
  const points: Guess[] = [];
  pairs.classes.forEach((name, a) =>
    pairs.classes.forEach((beside, b) => {
      const [rate, guess] = [pairs.measured[a][b], believed[a][b]];
      if (rate && guess !== null) points.push({ name, beside, measured: rate, believed: guess });
    }),
  );
  if (!points.length) return;
  find("#" + id).hidden = false;
  find(`#${id} .lead`).textContent =
    "Each point is a class beside another: its measured rate, and what policies believed when the run began. On the diagonal the prediction is right; above it is too hopeful.";
  const errors = points.map((point) => Math.abs(point.believed - point.measured));
  const mean = errors.reduce((sum, error) => sum + error, 0) / errors.length;
  const within = errors.filter((error) => error <= 0.05).length / errors.length;
  find(`#${id} .words`).append(
    el("p", { class: "big" }, `The mean absolute error over ${count(points.length, "rate")} is ${num(mean, 3)}; ${pct(within, 0)} are within 0.05.`),
    el("p", { class: "hint" }, "Pairs that the predictor was trained on are among them."),
  );
  const values = points.flatMap((point) => [point.measured, point.believed]);
  const [low, high] = [Math.floor(least(values, 1) * 10) / 10, Math.ceil(greatest(values, 1) * 10) / 10];
  page.add(() => {
    const host = page.plot(id);
    const width = plotWidth(host);
    const height = Math.min(width, 520) + 20;
    const x = linear(low, high, 48, width - 14);
    const y = linear(low, high, height - 48, 28);
    const step = high - low > 0.61 ? 0.2 : 0.1;
    const ticks: Tick[] = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9; k++) ticks.push([k * step, num(k * step, 1)]);
    const label = `Predicted against measured rates of ${num(points.length)} ordered pairs; mean absolute error ${num(mean, 3)}.`;
    const svg = mount(host, width, height, label);
    drawAxes(svg, { x, y, xTicks: ticks, yTicks: ticks, xLabel: "Measured rate", yLabel: "Believed at first" });
    svg.append(sv("path", { class: "ref", d: `M${x(low)},${y(low)}L${x(high)},${y(high)}` }));
    const place = (point: Guess) => [x(point.measured), y(point.believed)] as const;
    for (const point of points) {
      const [cx, cy] = place(point);
      const at = { cx: cx.toFixed(1), cy: cy.toFixed(1), r: 2.6 };
      svg.append(sv("circle", { class: "pt", ...at, style: { fill: "var(--better)" } }));
    }
    const describe = (point: Guess) => ({
      head: `${point.name} beside ${point.beside}`,
      rows: ["measured " + num(point.measured, 3), "believed at first " + num(point.believed, 3)],
    });
    addPointCursor(svg, { points, place, describe, ringRadius: 6 });
  });
}
