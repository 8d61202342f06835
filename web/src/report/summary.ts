// Header, tables of the metrics, glossary and notes.

import { el } from "../charts/dom.ts";
import type { Child } from "../charts/dom.ts";
import { count, dur, exact, num, pct, times } from "../charts/format.ts";
import type { Metrics, Run } from "./data.ts";
import { headline } from "./headline.ts";
import { find } from "./page.ts";
import type { Page } from "./page.ts";

type Form = (x: number) => string;

interface Column {
  key: keyof Metrics | "change";
  name: string;
  unit: string;
  /** As it stands in the summary, and with all its digits. */
  form: readonly [Form, Form];
  /** Which end is best: -1 low, 1 high, 0 neither. */
  best: -1 | 0 | 1;
  meaning: string;
  /** Only among the exact values. */
  detail?: boolean;
}

const time = [dur, exact] as const;
const share = [(x: number) => pct(x), (x: number) => pct(x, 4)] as const;
const ratio = [(x: number) => times(x), (x: number) => num(x, 6)] as const;
const whole = [(x: number) => num(x), (x: number) => num(x)] as const;
const signed = (x: number) => (x > 0 ? "+" : x < 0 ? "−" : "±") + pct(Math.abs(x));

const columns = (base: Run | null): Column[] => [
  { key: "avg_jct_s", name: "Mean JCT", unit: "duration", form: time, best: -1, meaning: "Mean JCT of all jobs." },
  {
    key: "change",
    name: "Change",
    unit: base ? "against " + base.policy : "",
    form: [signed, (x) => pct(x, 4)],
    best: 0,
    meaning: "Mean JCT compared with the best policy that does not share GPUs; negative is shorter.",
  },
  { key: "median_jct_s", name: "Median JCT", unit: "duration", form: time, best: -1, meaning: "Half of the jobs have a JCT no longer than this." },
  { key: "p99_jct_s", name: "p99 JCT", unit: "duration", form: time, best: -1, meaning: "99 of 100 jobs have a JCT no longer than this (nearest rank)." },
  { key: "avg_wait_s", name: "Mean wait", unit: "duration", form: time, best: -1, meaning: "From submission to the first start; mean over all jobs." },
  { key: "makespan_s", name: "Makespan", unit: "duration", form: time, best: -1, meaning: "From the first submission to the end of the last job." },
  { key: "gpu_busy", name: "GPU busy", unit: "% of GPU time", form: share, best: 0, meaning: "Share of GPU time with at least one tenant. High is good only if the work gets done: see goodput." },
  { key: "goodput", name: "Goodput", unit: "work per busy time", form: [(x) => num(x, 3), (x) => num(x, 6)], best: 1, meaning: "Work done, counted in GPU time of jobs that run alone, divided by busy GPU time. Above 1 means that sharing pays." },
  { key: "avg_slowdown", name: "Mean slow-down", unit: "JCT ÷ solo time", form: ratio, best: -1, meaning: "Mean of JCT divided by the duration of the job when it runs alone at once; 1 is ideal, waiting counts." },
  { key: "shared_gpu_time", name: "Shared", unit: "% of GPU time", form: share, best: 0, meaning: "Share of GPU time with two or more tenants. Neither good nor bad by itself." },
  { key: "preemptions", name: "Preemptions", unit: "count", form: whole, best: -1, meaning: "How often a running job was stopped so that its GPUs could be used otherwise." },
  { key: "restores", name: "Restores", unit: "count", form: whole, best: -1, detail: true, meaning: "How often a stopped job was started again from its saved state, which costs time." },
  { key: "decisions", name: "Decisions", unit: "count", form: whole, best: 0, detail: true, meaning: "How often the policy was asked for a plan." },
  { key: "active_jobs_max", name: "Most active", unit: "jobs at once", form: whole, best: 0, detail: true, meaning: "The most jobs that were submitted and not finished at one instant." },
];

const WORDS: readonly (readonly [string, string])[] = [
  ["JCT", "Job completion time: from the submission of a job to its end, waiting included."],
  ["Tenant", "A job on a GPU. A GPU with two or more tenants is shared."],
  ["Share", "The budget of a tenant: its part of the GPU’s compute units. Budgets may add up to more than 100 %."],
  ["Rate", "Speed of a job relative to running alone: 1 is full speed, 0.8 is four fifths of it."],
  ["Slow-down", "1 ÷ rate. A slow-down of 1.25 means that the same work takes a quarter longer than alone."],
];

export function addSummary(page: Page): void {
  addHeader(page);
  addBounds(page);
  new Tables(page).add();
  const { notes } = page.data;
  if (notes.length) {
    find("#notes").hidden = false;
    find("#notes ul").append(...notes.map((note) => el("li", {}, note)));
  }
}

function addHeader({ data, runs, standing }: Page): void {
  find("#title").textContent = document.title;
  const words = headline(runs, standing).map((word) => (typeof word === "string" ? word : el("b", {}, word.name)));
  find("#headline").append(...words);
  const facts: [string, string][] = [
    ["Trace", data.trace],
    ["Jobs", num(data.jobs)],
    ["GPUs", num(data.gpus)],
    ["Partitions", num(data.partitions)],
    ["Policies", num(runs.length)],
  ];
  find("#facts").append(...facts.map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, value))));
}

function addBounds({ data, standing: { hero } }: Page): void {
  const { exclusive_s: alone, sharing_s: shared, tenants_max: most } = data.lower_bound;
  const withSharing = `up to ${count(most, "job")} on a GPU`;
  const bounds =
    alone === shared
      ? `no schedule with ${withSharing} can have a mean JCT below ${dur(shared)}`
      : `no schedule can have a mean JCT below ${dur(alone)} without sharing, or below ${dur(shared)} with ${withSharing}`;
  const above = pct(hero.metrics.avg_jct_s / shared - 1);
  const which = alone === shared ? "that" : "the latter";
  find("#left").append(
    el("b", {}, "How much is left: "),
    bounds + (shared > 0 ? `; ${hero.policy} is ${above} above ${which}. ` : ". "),
    "The bounds leave gangs, the cost of stopping and most of the interference out of account, so part of that cannot be had.",
  );
}

/** Columns per table of the exact values, which are long numbers. */
const EXACT_COLUMNS = 5;

class Tables {
  private readonly columns: Column[];
  private key: Column["key"] | "" | null = null;
  private direction = 1;

  constructor(private readonly page: Page) {
    const { base } = page.standing;
    // A column in which nobody has anything to say is left out.
    this.columns = columns(base).filter(({ key }) => page.runs.some((run) => this.value(run, key)));
  }

  private value(run: Run, key: Column["key"]): number | null {
    if (key !== "change") return run.metrics[key];
    const { base } = this.page.standing;
    return base && base.metrics.avg_jct_s > 0 ? run.metrics.avg_jct_s / base.metrics.avg_jct_s - 1 : null;
  }

  add(): void {
    this.draw();
    const exactly = find("#exact");
    for (let at = 0; at < this.columns.length; at += EXACT_COLUMNS) {
      const table = el("table");
      this.fill(table, this.columns.slice(at, at + EXACT_COLUMNS), 1);
      const label = `Exact values, part ${at / EXACT_COLUMNS + 1}`;
      exactly.append(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table));
    }
    const words = [...WORDS, ...this.columns.map(({ name, meaning }) => [name, meaning] as const)];
    find("#glossary dl").append(...words.flatMap(([word, text]) => [el("dt", {}, word), el("dd", {}, text)]));
  }

  private draw(): void {
    this.fill(find<HTMLTableElement>("#table"), this.columns.filter(({ detail }) => !detail), 0);
  }

  private fill(table: HTMLTableElement, columns: readonly Column[], form: 0 | 1): void {
    const sortable = form === 0;
    const heads = columns.map(({ key, name, unit, form: forms }) =>
      this.head(key, name, sortable || forms !== time ? unit : "seconds", sortable),
    );
    const rows = (sortable ? this.sorted() : this.page.runs).map((run) => this.row(run, columns, form));
    table.replaceChildren(
      el("thead", {}, el("tr", {}, this.head("", "Policy", "", sortable), ...heads)),
      el("tbody", {}, ...rows),
    );
  }

  private head(key: Column["key"] | "", name: string, unit: string, sortable: boolean): HTMLElement {
    const sorted = sortable && this.key === key ? (this.direction > 0 ? "ascending" : "descending") : null;
    const words: Child[] = [el("span", {}, name), unit ? el("small", {}, unit) : null];
    const click = () => {
      this.direction = this.key === key ? -this.direction : 1;
      this.key = key;
      this.draw();
      find(`#table [data-key="${key}"]`).focus();
    };
    const inner = sortable ? [el("button", { type: "button", "data-key": key, onclick: click }, ...words)] : words;
    return el("th", { scope: "col", "aria-sort": sorted }, ...inner);
  }

  private sorted(): readonly Run[] {
    const { key, direction, page } = this;
    if (key === null) return page.runs;
    const sign = (a: number | string, b: number | string) => (a < b ? -direction : a > b ? direction : 0);
    const value = (run: Run) => (key === "" ? run.policy.toLowerCase() : (this.value(run, key) ?? -Infinity));
    return [...page.runs].sort((a, b) => sign(value(a), value(b)) || a.i - b.i);
  }

  private row(run: Run, columns: readonly Column[], form: 0 | 1): HTMLElement {
    // Long names may break after what joins their parts.
    const name = run.policy.split(/(?<=[:=,;_-])/).flatMap((part) => [part, el("wbr")]);
    const cells = columns.map((column) => this.cell(run, column, form));
    const hero = run === this.page.standing.hero && this.page.runs.length > 1;
    return el("tr", { class: hero ? "hero" : null }, el("th", { scope: "row" }, ...name), ...cells);
  }

  private cell(run: Run, { key, form: forms, best }: Column, form: 0 | 1): HTMLElement {
    const value = this.value(run, key);
    if (value === null) return el("td", {}, "–");
    if (key === "change" && run === this.page.standing.base) return el("td", {}, "reference");
    const star = value === this.top(key, best);
    const title = form === 0 ? forms[1](value) : null;
    const words = [forms[form](value), star ? el("span", { class: "sr" }, " (best)") : null];
    return el("td", { class: star ? "best" : null, title }, ...words);
  }

  /** The best value of a column; nothing is best where all are equal. */
  private top(key: Column["key"], best: -1 | 0 | 1): number | undefined {
    const values = this.page.runs.map((run) => this.value(run, key)).filter((value) => value !== null);
    const top = best < 0 ? Math.min(...values) : Math.max(...values);
    return best && values.some((value) => value !== top) ? top : undefined;
  }
}
