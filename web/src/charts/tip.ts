// One tooltip for the page, which is also the live region that speaks for the keyboard cursor.

import { clamp, el } from "./dom.ts";
import type { Child } from "./dom.ts";

/** A line of the tooltip: words, or a mark, a name and a value. */
export type TipRow = string | { mark: () => Node; name: string; value: string };

let node: HTMLElement | null = null;
let owner: unknown = null;

function tip(): HTMLElement {
  if (!node || !node.isConnected) {
    node = el("div", { id: "tip", role: "status" });
    document.body.append(node);
  }
  return node;
}

const row = (line: TipRow): Child =>
  typeof line === "string"
    ? el("div", {}, line)
    : el("div", {}, line.mark(), el("span", {}, line.name), line.value);

export function showTip(by: unknown, x: number, y: number, head: string, rows: readonly TipRow[]): void {
  const box = tip();
  owner = by;
  box.replaceChildren(el("b", {}, head), ...rows.map((line) => row(line) as Node));
  const [w, h, page] = [box.offsetWidth, box.offsetHeight, document.documentElement.clientWidth];
  const right = x + 14 + w < page - 8;
  const left = right ? x + 14 : x - 14 - w > 8 ? x - 14 - w : clamp(x - w / 2, 8, Math.max(8, page - w - 8));
  const covers = left < x && left + w > x;
  box.style.left = left + "px";
  box.style.top = clamp(covers ? y - h - 18 : y - h / 2, 8, Math.max(8, innerHeight - h - 8)) + "px";
  box.style.visibility = "visible";
}

/** A chart hides only its own tooltip: on a tap the next chart has shown its own before the last one loses the focus. */
export function hideTip(by?: unknown): void {
  if (node && (by === undefined || by === owner)) node.style.visibility = "hidden";
}
