// The report: one page that draws what the simulator wrote into it.

import "../charts/charts.css";
import "./report.css";
import { hideTip } from "../charts/tip.ts";
import { addCompletionTimes, addSlowdowns } from "./distributions.ts";
import type { Report } from "./data.ts";
import { addGantt } from "./gantt.ts";
import { Page, find } from "./page.ts";
import { addBeliefs, addPairs } from "./pairs.ts";
import { addScatter } from "./scatter.ts";
import { addQueue, addUtilisation } from "./series.ts";
import { addSharing } from "./sharing.ts";
import { addSummary } from "./summary.ts";

const root = document.documentElement;

/** A failure is visible to a test and to the reader. */
function fail(message: string): void {
  root.dataset.error = message;
  const box = find("#failed");
  box.hidden = false;
  box.textContent = "This report could not be drawn completely: " + message;
}

function begin(): void {
  const page = new Page(JSON.parse(find("#data").textContent ?? "") as Report);
  addSummary(page);
  addCompletionTimes(page);
  addQueue(page);
  addUtilisation(page);
  addSharing(page);
  addSlowdowns(page);
  addPairs(page);
  addBeliefs(page);
  addGantt(page);
  addScatter(page);
  page.redraw();
  let width = root.clientWidth;
  let waiting = 0;
  addEventListener("resize", () => {
    if (root.clientWidth === width) return;
    width = root.clientWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => page.redraw());
  });
  addEventListener("scroll", () => hideTip(), { passive: true });
  addEventListener("pointerdown", (event) => {
    if (!(event.target instanceof Element && event.target.closest(".plot"))) hideTip();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.redraw());
  // Printing: light colours also in the canvas, and nothing folded away.
  addEventListener("beforeprint", () => {
    root.dataset.print = "1";
    find<HTMLDetailsElement>("#glossary").open = true;
    page.redraw();
  });
  addEventListener("afterprint", () => {
    delete root.dataset.print;
    page.redraw();
  });
  root.dataset.ready = "1";
}

addEventListener("error", (event) => fail(event.message));
begin();
