// Job by job: completion times under two policies.

import { el, sv } from "../charts/dom.ts";
import { count, dur, num, pct, short, times } from "../charts/format.ts";
import { addPointCursor, drawAxes, mount, plotWidth } from "../charts/frame.ts";
import { swatch } from "../charts/palette.ts";
import { logDomain, logTicks, logarithmic } from "../charts/scales.ts";
import type { Run } from "./data.ts";
import { find } from "./page.ts";
import type { Page } from "./page.ts";

const ID = "chart-scatter";
/** Times within this share of each other are equal. */
const SAME = 0.001;
const KINDS = ["same", "better", "worse"] as const;

interface Point {
  job: number;
  kind: 0 | 1 | 2;
  x: number;
  y: number;
}

/** How jobs fare under B compared with A, in a sentence that holds for any ratio. */
export function medianWords(ratio: number): string {
  if (Math.abs(ratio - 1) <= SAME) return "Half of the jobs take at most as long under B as under A.";
  if (ratio < 1) return `Half of the jobs are at least ${times(1 / ratio)} times as fast under B as under A.`;
  return `Half of the jobs take at least ${times(ratio)} times as long under B as under A.`;
}

export function addScatter(page: Page): void {
  const [lead, bar, split] = [".lead", ".bar", ".split"].map((part) => find(`#${ID} ${part}`));
  if (page.runs.length < 2) {
    bar.style.display = split.style.display = "none";
    lead.textContent = "This comparison needs two policies; the report has only one, so the chart is left out.";
    return;
  }
  const [a, b] = ["#s-a", "#s-b"].map((id) => find<HTMLSelectElement>(id));
  const { hero, base } = page.standing;
  const reference = base && base !== hero ? base : (page.runs.find((run) => run !== hero) ?? hero);
  page.addOptions(a, page.runs, reference);
  page.addOptions(b, page.runs, hero);
  const { jobs, scatter } = page.data;
  const sample = scatter.ids.length < jobs ? `A sample of ${num(scatter.ids.length)} of ${num(jobs)} jobs. ` : "";
  lead.textContent = sample + "Each point is a job, placed by its completion time under A and under B. Below the diagonal B is faster.";
  const draw = () => drawScatter(page, page.chosen(a), page.chosen(b));
  for (const select of [a, b]) select.addEventListener("change", draw);
  find("#s-swap").addEventListener("click", () => {
    [a.value, b.value] = [b.value, a.value];
    draw();
  });
  page.add(draw);
}

function drawScatter(page: Page, a: Run, b: Run): void {
  const host = page.plot(ID);
  const { scatter } = page.data;
  const width = plotWidth(host);
  const height = Math.min(width, 600) + 20;
  const { low, high, cut } = logDomain([a.jct, b.jct]);
  const x = logarithmic(low, high, 62, width - 14);
  const y = logarithmic(low, high, height - 48, 28);
  const n = Math.min(a.jct.length, b.jct.length);
  const kind = (i: number): 0 | 1 | 2 => {
    const [ja, jb] = [a.jct[i], b.jct[i]];
    return Math.abs(ja - jb) <= SAME * Math.max(ja, jb) ? 0 : jb < ja ? 1 : 2;
  };
  const points = Array.from({ length: n }, (_, job): Point => ({ job, kind: kind(job), x: x(a.jct[job]), y: y(b.jct[job]) }));
  const tally = KINDS.map((_, k) => points.filter((point) => point.kind === k).length);
  const part = (k: number) => `${num(tally[k])} (${pct(n ? tally[k] / n : 0, tally[k] && tally[k] < n / 100 ? 1 : 0)})`;
  const label = `Job completion time under ${a.policy} (A) against ${b.policy} (B), both axes logarithmic: ${part(1)} of ${num(n)} jobs are faster under B, ${part(2)} slower, ${part(0)} equal.`;
  const svg = mount(host, width, height, label);
  const room = (width - 90) / 7;
  drawAxes(svg, {
    x, y,
    xTicks: logTicks(x, 52),
    yTicks: logTicks(y, 34),
    xLabel: "JCT under A: " + short(a.policy, room - 20) + " (log scale)",
    yLabel: "JCT under B: " + short(b.policy, room - 14) + " (log scale)",
  });
  svg.append(sv("path", { class: "ref", d: `M${x(low)},${y(low)}L${x(high)},${y(high)}` }));
  if (high / low > 300) {
    const d = `M${x(low * 10)},${y(low)}L${x(high)},${y(high / 10)}`;
    svg.append(
      sv("path", { class: "ref", "stroke-dasharray": "2 4", "stroke-opacity": 0.7, d }),
      sv("text", { x: x(low * 10) + 12, y: y(low) - 6 }, "10 times faster under B"),
    );
  }
  for (const point of points) {
    const r = (1.7 + 0.55 * Math.log2(Math.max(1, scatter.gpus[point.job] || 1))).toFixed(1);
    const style = { fill: `var(--${KINDS[point.kind]})` };
    svg.append(sv("circle", { class: "pt", cx: point.x.toFixed(1), cy: point.y.toFixed(1), r, style }));
  }
  addPointCursor(svg, {
    points,
    place: (point) => [point.x, point.y],
    ringRadius: 7,
    describe: ({ job, kind: k }) => {
      const [ja, jb] = [a.jct[job], b.jct[job]];
      const verdict = ["the same under A and B", "faster under B", "slower under B"][k];
      const row = (run: Run, value: number) => ({ mark: () => swatch(run.line), name: run.policy, value: dur(value) });
      const rows = [row(a, ja), row(b, jb), verdict + (k ? ` by ${dur(Math.abs(ja - jb))}` : "")];
      return { head: `job ${scatter.ids[job]}, ${count(scatter.gpus[job], "GPU")}`, rows };
    },
  });
  const ratios = points.map(({ job }) => b.jct[job] / a.jct[job]).sort((p, q) => p - q);
  const median = ratios.length ? ratios[ratios.length >> 1] : 1;
  const key = (name: string, text: string) => el("p", {}, el("span", { class: "sw " + name }), text);
  find(`#${ID} .words`).replaceChildren(
    el("p", { class: "big" }, `Of ${count(n, "job")}, ${part(1)} ${tally[1] === 1 ? "is" : "are"} faster under B than under A, ${part(2)} slower, and ${part(0)} equal (within ${pct(SAME)}).`),
    el("p", {}, medianWords(median)),
    el("p", { class: "hint" }, "A is ", a.policy, "; B is ", b.policy, "."),
    key("better", "below the diagonal: faster under B"),
    key("worse", "above the diagonal: slower under B"),
    key("same", "on the diagonal: equal"),
    el("p", { class: "hint" }, "Larger points are jobs with more GPUs." + (cut ? " Jobs of less than one second are drawn at one second." : "")),
  );
}
