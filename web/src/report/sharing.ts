// Which classes shared a GPU under one policy.

import { el } from "../charts/dom.ts";
import { num, pct } from "../charts/format.ts";
import { find } from "./page.ts";
import type { Page } from "./page.ts";
import type { Sharing } from "./data.ts";

export function addSharing(page: Page): void {
  const runs = page.runs.filter((run) => run.sharing);
  if (!runs.length) return;
  const box = find("#sharing");
  const select = find<HTMLSelectElement>("#sh-run");
  box.hidden = false;
  const { hero } = page.standing;
  page.addOptions(select, runs, hero.sharing ? hero : runs[0]);
  const draw = () => {
    const { sharing, metrics } = page.chosen(select);
    if (!sharing) return;
    const isSplit = sharing.sub_batches.some(([parts]) => parts > 1);
    const batches = sharing.sub_batches.map(([parts, jobs]) => `${parts}: ${num(jobs)}`).join(", ");
    const facts = [
      ["GPU time shared", pct(metrics.shared_gpu_time)],
      ["Goodput", num(metrics.goodput, 3)],
      ["Kinds of pairs", num(sharing.all_pairs)],
      ["Jobs by sub-batches", isSplit ? batches : "none split their batches"],
    ];
    find("dl", box).replaceChildren(...facts.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v))));
    find(".foot", box).textContent = drawTable(page, sharing, find("table", box));
  };
  select.addEventListener("change", draw);
  draw();
}

/** Draws the table, and returns what has to be said about it. */
function drawTable({ data: { pairs } }: Page, sharing: Sharing, table: HTMLElement): string {
  const place = new Map((pairs?.classes ?? []).map((name, i) => [name, i]));
  const rate = (a: string, b: string): number | null => {
    const [row, column] = [place.get(a), place.get(b)];
    return pairs && row !== undefined && column !== undefined ? pairs.measured[row][column] : null;
  };
  // Without a single known rate the two columns would hold nothing.
  const hasRates = sharing.pairs.some(([a, b]) => rate(a, b) !== null || rate(b, a) !== null);
  const heads = ["A", "B", "GPU hours", "Share", ...(hasRates ? ["Rate of A", "Rate of B"] : [])];
  const say = (value: number | null) => (value === null ? "not measured" : num(value, 2));
  const row = ([a, b, seconds]: [string, string, number]) => {
    const numbers = [num(seconds / 3600, 1), pct(seconds / sharing.all_gpu_s)];
    if (hasRates) numbers.push(say(rate(a, b)), say(rate(b, a)));
    const cells = numbers.map((text) => el("td", {}, text));
    return el("tr", {}, el("th", { scope: "row" }, a), el("td", { class: "left" }, b), ...cells);
  };
  const head = (text: string, i: number) => el("th", { scope: "col", class: i === 1 ? "left" : null }, text);
  table.replaceChildren(
    el("thead", {}, el("tr", {}, ...heads.map(head))),
    el("tbody", {}, ...sharing.pairs.map(row)),
  );
  const shown = sharing.pairs.length;
  const first = shown < sharing.all_pairs ? `The first ${num(shown)} of ${num(sharing.all_pairs)} kinds of pairs. ` : "";
  return first + "On a GPU with three tenants each pair counts." + (hasRates ? "" : " Rates are shown where they come from a table.");
}
