// Which jobs ran on which GPUs.

import { el, sv } from "../charts/dom.ts";
import { count, dur, moment, num } from "../charts/format.ts";
import { Gantt } from "../charts/gantt.ts";
import type { GanttData, Segment } from "../charts/gantt.ts";
import { JOB_COLOURS, jobColour } from "../charts/palette.ts";
import { timeTicks } from "../charts/scales.ts";
import type { Run } from "./data.ts";
import { find } from "./page.ts";
import type { Page } from "./page.ts";

const ID = "chart-gantt";

const shared = (run: Run): number => run.gantt.filter((segment) => segment[5] > 1).length;

export function addGantt(page: Page): void {
  const { gantt: window } = page.data;
  const rows = window.rows.length;
  const select = find<HTMLSelectElement>("#g-run");
  const { hero } = page.standing;
  const most = page.runs.reduce((a, b) => (shared(b) > shared(a) ? b : a));
  page.addOptions(select, page.runs, shared(hero) ? hero : most); // begins where co-location is to be seen
  find(`#${ID} .lead`).textContent = lead(page);
  if (!rows) {
    for (const part of [".bar", ".plot", "#g-key", ".hint"]) find(`#${ID} ${part}`).style.display = "none";
    return;
  }
  const colours = window.jobs.map((job) => jobColour(job.id));
  const gantt = new Gantt<Segment>(
    page.plot(ID),
    {
      colour: (segment) => colours[segment.key],
      hatch: (segment) => (segment.lanes > 1 ? "shared" : "none"),
      describe: (segment, row) => describe(page, segment, row),
      ticks: timeTicks,
    },
    data(page, page.chosen(select)),
  );
  const buttons: [string, () => void][] = [
    ["left", () => gantt.pan(-0.4)],
    ["right", () => gantt.pan(0.4)],
    ["in", () => gantt.zoom(1.8)],
    ["out", () => gantt.zoom(1 / 1.8)],
    ["reset", () => gantt.reset()],
  ];
  for (const [name, act] of buttons) find("#g-" + name).addEventListener("click", act);
  const tall = find("#g-tall");
  tall.addEventListener("click", () => {
    const next = tall.getAttribute("aria-pressed") !== "true";
    tall.setAttribute("aria-pressed", String(next));
    gantt.setTall(next);
  });
  select.addEventListener("change", () => gantt.set(data(page, page.chosen(select))));
  addKey();
  page.add(() => gantt.draw());
}

function lead({ data: { gantt: window } }: Page): string {
  const n = window.rows.length;
  if (!n) return "No GPUs are in the chosen window, so there is nothing to draw.";
  const all = n === 1 ? "The GPU" : `The ${num(n)} GPUs`;
  const which = n < window.partition_gpus ? `The first ${num(n)} of ${num(window.partition_gpus)} GPUs` : all;
  const [from, to] = [window.from_s, window.to_s].map((t) => moment(t, window.to_s, 60));
  return `${which} of partition ${window.partition} from ${from} to ${to} after the first submission: one row per GPU, one colour per job (colours repeat).`;
}

function data({ data: { gantt: window } }: Page, run: Run): GanttData<Segment> {
  const segments = run.gantt
    .filter((segment) => window.jobs[segment[3]])
    .map(([row, from, to, key, lane, lanes]): Segment => ({ row, from, to, key, lane, lanes }));
  const together = shared(run);
  const node = (label: string) => (label.includes(" ") ? label.slice(0, label.lastIndexOf(" ")) : label);
  return {
    rows: window.rows.map((label) => ({ label, group: node(label) })),
    segments,
    extent: [window.from_s, Math.max(window.to_s, window.from_s + 1e-6)],
    title: run.policy, // paper has no selector
    axis: "Time since the first submission",
    empty: "no tenants under this policy in this window",
    label: (from, to) =>
      `GPU by time chart of ${run.policy}, partition ${window.partition}: ${count(segments.length, "segment")} on ${count(window.rows.length, "GPU")}, ${num(together)} of them co-located. In view: ${dur(from)} to ${dur(to)} after the first submission.`,
  };
}

function describe({ data: { gantt: window } }: Page, segment: Segment, row: readonly Segment[]) {
  const job = window.jobs[segment.key];
  const overlaps = (o: Segment) => o.key !== segment.key && o.from < segment.to && o.to > segment.from;
  const others = [...new Set(row.filter(overlaps).map((o) => window.jobs[o.key].id))];
  const named = "job " + others.slice(0, 4).join(", ") + (others.length > 4 ? " and others" : "");
  const [from, to] = [segment.from, segment.to].map((t) => moment(t, window.to_s, 1));
  const rows = [
    job.class,
    job.user && "user " + job.user,
    `${window.rows[segment.row]}, ${from} to ${to} (${dur(segment.to - segment.from)})`,
    segment.lanes > 1
      ? `lane ${segment.lane + 1} of ${segment.lanes}, with ${others.length ? named : "another tenant"}`
      : "alone on this GPU",
  ];
  return { head: `job ${job.id}, ${count(job.gpus, "GPU")}`, rows: rows.filter(Boolean) };
}

/** The key to the picture, drawn with the same shapes. */
function addKey(): void {
  const key = (text: string, ...shapes: SVGElement[]) =>
    el("span", { class: "key" }, sv("svg", { width: 34, height: 16, "aria-hidden": "true" }, ...shapes), text);
  const bar = (y: number, height: number, fill: string) => sv("rect", { x: 0, y, width: 33, height, style: { fill } });
  const hatch = (y: number) =>
    sv("path", {
      d: [0, 6, 12, 18, 24].map((k) => `M${k},${y + 7}l7,-7`).join(""),
      style: { stroke: "var(--hatch)", fill: "none" },
    });
  const outlined = { fill: JOB_COLOURS[6], stroke: "var(--ink)", "stroke-width": 2 };
  find("#g-key").append(
    key("one tenant, alone on the GPU", bar(1, 14, JOB_COLOURS[1])),
    key("co-located tenants: split lanes, hatched", bar(1, 7, JOB_COLOURS[2]), hatch(1), bar(9, 7, JOB_COLOURS[5]), hatch(9)),
    key("idle GPU", bar(1, 14, "var(--track)")),
    key("the same job on other GPUs, outlined when one is chosen", sv("rect", { x: 1, y: 2, width: 31, height: 12, style: outlined })),
  );
}
