// What the parts of the report share: the data, the charts that are drawn again when the width changes, the hidden policies.

import { el } from "../charts/dom.ts";
import { short } from "../charts/format.ts";
import { swatch } from "../charts/palette.ts";
import { hideTip } from "../charts/tip.ts";
import { order, standing } from "./data.ts";
import type { Report, Run, Standing } from "./data.ts";

export function find<E extends Element = HTMLElement>(selector: string, root: ParentNode = document): E {
  const node = root.querySelector<E>(selector);
  if (!node) throw new Error(`the page has no ${selector}`);
  return node;
}

export class Page {
  readonly runs: Run[];
  readonly standing: Standing;
  private readonly hidden = new Set<number>();
  private readonly charts: (() => void)[] = [];

  constructor(readonly data: Report) {
    this.runs = order(data.runs);
    this.standing = standing(this.runs);
  }

  plot(id: string): HTMLElement {
    return find(`#${id} .plot`);
  }

  shown(): Run[] {
    return this.runs.filter((run) => !this.hidden.has(run.i));
  }

  /** A function that draws a chart at the present width. */
  add(draw: () => void): void {
    this.charts.push(draw);
  }

  redraw(): void {
    hideTip();
    for (const draw of this.charts) draw();
  }

  private update(): void {
    const y = scrollY;
    this.redraw();
    scrollTo(0, y);
  }

  /** Buttons that show and hide policies, in all charts at once. */
  addLegend(id: string): void {
    const { hidden, runs } = this;
    const toggle = (i: number) => {
      if (!hidden.delete(i)) hidden.add(i);
      this.update();
    };
    const solo = (i: number) => {
      hidden.clear();
      for (const run of runs) if (run.i !== i) hidden.add(run.i);
      this.update();
    };
    const button = (run: Run) =>
      el(
        "button",
        {
          type: "button",
          class: "btn",
          title: run.policy + " (click: show or hide; double click: only this one)",
          onclick: () => toggle(run.i),
          ondblclick: () => solo(run.i),
        },
        swatch(run.line),
        el("span", { class: "nm" }, run.policy),
      );
    const buttons = runs.map(button);
    const showAll = () => {
      hidden.clear();
      this.update();
    };
    const all = el("button", { type: "button", class: "btn noprint", onclick: showAll }, "Show all");
    const box = find(`#${id} .legend`);
    box.append(...buttons, all);
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", "Policies shown");
    this.add(() => {
      buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(!hidden.has(i))));
      all.style.display = hidden.size ? "" : "none";
    });
  }

  /** A choice of policies. */
  addOptions(select: HTMLSelectElement, runs: readonly Run[], chosen: Run): void {
    for (const run of runs) select.append(el("option", { value: run.i }, short(run.policy, 60)));
    select.value = String(chosen.i);
  }

  chosen(select: HTMLSelectElement): Run {
    return this.runs[Number(select.value)];
  }
}
